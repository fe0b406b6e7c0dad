"""Requests that the service sends to itself before it is ready.

Compiled shapes are not all that a first request waits for: reading, validating and writing one
happens for the first time as well. Every example of the documentation is sent to every model
through the application as it stands, so that a call that is added later is rehearsed, too. What
stays on disk until somebody asks for it is not fetched for a rehearsal.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.types import Message

logger = logging.getLogger(__name__)

# The key of a request's state that says that no client is behind it.
IS_REHEARSAL = "is_rehearsal"
FAULT_STATUS, NOT_READY_STATUS = 500, 503


async def rehearse(app: FastAPI, models: Sequence[str]) -> None:
    """Sends every example to every model; most fit one and are refused by the others."""
    served = 0
    for path, example in examples(app.openapi()):
        for model in models:
            address, body = addressed(path, example, model)
            status = await _send(app, address, orjson.dumps(body))
            served += status == 200
            if status >= FAULT_STATUS and status != NOT_READY_STATUS:
                logger.error("rehearsal: %s to %s was answered %d", path, model, status)
    logger.info("rehearsed %d requests", served)


def addressed(path: str, example: dict[str, Any], model: str) -> tuple[str, dict[str, Any]]:
    """The path and body that send ``example`` to ``model``: its name is in the one or the other."""
    if "{name}" in path:
        return path.replace("{name}", model), example
    return path, {**example, "model": model}


def examples(openapi: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The path and body of every example of a JSON request that an OpenAPI schema gives."""
    schemas = openapi.get("components", {}).get("schemas", {})
    for path, calls in openapi["paths"].items():
        body = calls.get("post", {}).get("requestBody", {}).get("content", {})
        schema = body.get("application/json", {}).get("schema", {})
        schema = schemas.get(schema.get("$ref", "").rsplit("/", 1)[-1], schema)
        for example in schema.get("examples", []):
            yield path, example


async def _send(app: FastAPI, path: str, body: bytes) -> int:
    """The status of the answer to a request that comes from no client."""
    sent: list[Message] = []
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            # A client that waits says nothing more.
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "state": {IS_REHEARSAL: True},
    }
    try:
        await app(scope, receive, send)
    # Answered and logged by then, and raised again; a fault of one call must not end the start.
    except Exception as error:  # noqa: BLE001
        logger.error("rehearsal: %s raised %r", path, error)
        return FAULT_STATUS
    return next(message["status"] for message in sent if message["type"] == "http.response.start")

"""What surrounds every request: body limit, strict JSON, request id and timing headers.

Work for a client that has left is given up, so that nothing is computed for nobody.
"""

import asyncio
import logging
import secrets
import string
import time
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.batcher import Ticket
from service.encoding import to_json
from service.errors import MalformedRequest, TooLarge, UnsupportedMedia, excerpt

MAX_REQUEST_ID = 128
# What logs say of a request whose client left; nobody receives it.
CLIENT_LEFT = 499
_PRINTABLE = frozenset(string.ascii_letters + string.digits + "-_.:/+=@")

logger = logging.getLogger(__name__)


class StrictRequest(Request):
    """A request whose body is read up to a limit and parsed as JSON to the letter."""

    async def body(self) -> bytes:
        """The body.

        Raises:
            TooLarge: as soon as it exceeds the limit.
        """
        if not hasattr(self, "_body"):
            limit = self.app.state.context.settings.max_body_bytes
            declared = self.headers.get("content-length", "")
            if declared.isdecimal() and float(declared) > limit:
                raise TooLarge(f"expected a body of at most {limit} bytes, got {declared[:20]}")
            chunks, size = [], 0
            async for chunk in self.stream():
                size += len(chunk)
                if size > limit:
                    raise TooLarge(f"expected a body of at most {limit} bytes, got more")
                chunks.append(chunk)
            self._body = b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        """The body as JSON; NaN, lone surrogates and bytes that are no UTF-8 are refused.

        Raises:
            MalformedRequest: if it is anything else.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise MalformedRequest(f"expected a body of JSON in UTF-8: {error}") from None
        return self._json


class StrictRoute(APIRoute):
    """A route that takes JSON and nothing else, or in a subclass bodies of another ``kind``.

    ``expected`` are the kinds that the path takes, to tell those who send any other.
    """

    kind = "application/json"
    expected: tuple[str, ...] = (kind,)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, over a ``StrictRequest``."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if request.method != "POST":
                return await handler(request)
            self._require_kind(request.headers)
            strictly = StrictRequest(request.scope, request.receive)
            try:
                # Read here, because FastAPI answers whatever its own reading raises with 400.
                await self.read(strictly)
            except ClientDisconnect:
                return Response(status_code=CLIENT_LEFT)
            return await _unless_client_leaves(strictly, handler(strictly))

        return strict

    async def read(self, request: StrictRequest) -> None:
        """Reads the body, so that whatever is wrong with it is known before the handler runs."""
        await request.json()

    def _require_kind(self, headers: Headers) -> None:
        if (kind := body_kind(headers)) != self.kind:
            raise UnsupportedMedia(
                f"expected {' or '.join(self.expected)}, got {excerpt(kind) if kind else 'none'}",
                "Content-Type",
            )


def body_kind(headers: Headers) -> str:
    """The media type of a body, without its parameters; empty where none is named."""
    return headers.get("content-type", "").split(";")[0].strip().lower()


async def _unless_client_leaves(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer that ``work`` gives; it is cancelled when the client closes the connection."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else Response(status_code=CLIENT_LEFT)
    finally:
        leaving.cancel()
        working.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class JsonResponse(Response):
    """An answer written by orjson: dataclasses and numpy arrays as they are."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """``content`` as bytes."""
        return to_json(content)


class Envelope:
    """Gives every answer an ``X-Request-Id`` and a ``Server-Timing`` header, and logs it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id(Headers(scope=scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                total_s = time.monotonic() - started
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = state["request_id"]
                headers["Server-Timing"] = server_timing(state.get("ticket"), total_s)
                logger.info(
                    "%s %s %d %.1f ms %s",
                    scope["method"],
                    # A path can hold line breaks, and must not forge a line of the log.
                    excerpt(scope["path"], 100),
                    message["status"],
                    1000 * total_s,
                    state["request_id"],
                )
            await send(message)

        await self._app(scope, receive, send_with_headers)


def request_id(headers: Headers) -> str:
    """The caller's ``X-Request-Id`` where it is a sane one, else a new one."""
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= MAX_REQUEST_ID and _PRINTABLE.issuperset(given):
        return given
    return secrets.token_hex(12)


def server_timing(ticket: Ticket | None, total_s: float) -> str:
    """The value of a ``Server-Timing`` header, in milliseconds."""
    queue_s, compute_s = (ticket.queue_s, ticket.compute_s) if ticket else (0.0, 0.0)
    spent = {"queue": queue_s, "compute": compute_s, "total": total_s}
    return ", ".join(f"{name};dur={1000 * seconds:.2f}" for name, seconds in spent.items())

"""The application: parts wired together, the table of errors, and what happens at the start."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from models.checkpoint import CheckpointError
from service import errors
from service.batcher import Batcher
from service.errors import TriwireError, excerpt
from service.registry import Registry
from service.routes import catalogue, health, inference
from service.schemas import FIELD_NAMES
from service.settings import Settings
from service.tasks import PROGRAMS
from service.tasks.context import Context
from service.transport import Envelope, JsonResponse

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1

# Status, OpenAI error type and code of every error that a request can meet.
TABLE: dict[type[TriwireError], tuple[int, str, str]] = {
    errors.MalformedRequest: (400, "invalid_request_error", "malformed_request"),
    errors.ModelNotFound: (404, "invalid_request_error", "model_not_found"),
    errors.TooLarge: (413, "invalid_request_error", "too_large"),
    errors.UnsupportedMedia: (415, "invalid_request_error", "unsupported_media_type"),
    errors.InvalidInput: (422, "invalid_request_error", "invalid_value"),
    errors.Overloaded: (429, "rate_limit_error", "queue_full"),
    errors.NonFiniteOutput: (500, "server_error", "non_finite_output"),
    errors.NotReady: (503, "server_error", "not_ready"),
    errors.DeadlineExceeded: (504, "server_error", "deadline_exceeded"),
}


def create_app(settings: Settings) -> FastAPI:
    """The application; models are loaded once it runs, and until then it is not ready."""
    registry = Registry(PROGRAMS)
    batcher = Batcher(
        lambda slot, rows: slot.run(rows),
        lambda slot: slot.capacity(),
        max_rows=settings.max_queue_rows,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await batcher.start()
        loading = asyncio.create_task(_load(app, registry, settings))
        yield
        loading.cancel()
        await batcher.stop()

    app = FastAPI(
        title="Triwire",
        version="0.1.0",
        description="Small transformers over HTTP, with the evidence for their answers.",
        lifespan=lifespan,
    )
    app.state.context = Context(registry, batcher, settings)
    app.state.failure = None
    app.add_middleware(Envelope)
    for router in (inference.router, catalogue.router, health.router):
        app.include_router(router)
    app.add_exception_handler(TriwireError, _on_triwire_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)
    return app


async def _load(app: FastAPI, registry: Registry, settings: Settings) -> None:
    try:
        await asyncio.to_thread(registry.load, settings.checkpoints)
    except CheckpointError as error:
        logger.error("models cannot be loaded: %s", error)
        app.state.failure = error
        return
    logger.info("ready: %s", ", ".join(sorted(registry.models)))


def _answer(
    request: Request, status: int, error_type: str, code: str, message: str, param: str | None
) -> JsonResponse:
    content = {
        "message": message,
        "type": error_type,
        "param": param,
        "code": code,
        "request_id": request.state.request_id,
    }
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else None
    return JsonResponse({"error": content}, status_code=status, headers=headers)


async def _on_triwire_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, TriwireError)
    status, error_type, code = TABLE[type(error)]
    message = str(error)
    if status == 500:
        logger.error("request %s: %s", request.state.request_id, error)
        message = "the model gave no usable answer; the log has the details"
    return _answer(request, status, error_type, code, message, error.param)


async def _on_invalid_request(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, RequestValidationError)
    param, message = explain(list(error.errors()))
    text = f"{param}: {message}" if param else message
    return _answer(request, 422, "invalid_request_error", "invalid_value", text, param)


def explain(details: list[dict[str, Any]]) -> tuple[str | None, str]:
    """The field and the fault of the first of some validation errors, with what came, cut short.

    A value that fits none of several types has an error for each. The one that went deepest into
    the value tells best what is wrong with it; those of equal depth are told together.
    """
    first = [detail for detail in details if detail["loc"][:2] == details[0]["loc"][:2]]
    paths = [_path(detail) for detail in first]
    deepest = max(paths, key=len)
    alike = [d for d, path in zip(first, paths, strict=True) if path == deepest]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in deepest)[1:]
    if alike[0]["type"] == "missing":
        return param or None, "expected a value, got none"
    if alike[0]["type"] == "extra_forbidden":
        return param, "expected no such field"
    wanted = [detail["msg"].removeprefix("Input should be ") for detail in alike]
    expected = " or ".join(dict.fromkeys(wanted))
    return param or None, f"expected {expected}, got {excerpt(alike[0].get('input'))}"


def _path(detail: dict[str, Any]) -> list[str | int]:
    """Where a validation error is, without the names of the types that were tried on the way."""
    *parts, last = detail["loc"][1:] or [""]
    kept = [part for part in parts if isinstance(part, int) or part in FIELD_NAMES]
    known = isinstance(last, int) or last in FIELD_NAMES or detail["type"] == "extra_forbidden"
    return [*kept, last] if known else kept


async def _on_http_exception(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {excerpt(request.url.path, 80)}: {error.detail}"
    answer = _answer(
        request, error.status_code, "invalid_request_error", "no_such_call", message, None
    )
    answer.headers.update(error.headers or {})
    return answer


async def _on_fault(request: Request, error: Exception) -> JsonResponse:
    logger.error("request %s failed", request.state.request_id, exc_info=error)
    message = "an internal error; the log has the details under this request id"
    return _answer(request, 500, "server_error", "internal_error", message, None)

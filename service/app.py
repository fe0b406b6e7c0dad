"""The application: parts wired together, the table of errors, and what happens at the start."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware

from service import errors
from service.batcher import Batcher
from service.errors import TriwireError, excerpt
from service.registry import Registry
from service.routes import catalogue, health, inference, latents
from service.settings import Settings
from service.tasks import PROGRAMS
from service.tasks.context import Context
from service.transport import Envelope, JsonResponse
from service.validation import explain

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
        loading = asyncio.create_task(_load(registry, settings))
        yield
        registry.stop()
        loading.cancel()
        await batcher.stop()

    app = FastAPI(
        title="Triwire",
        version="0.1.0",
        description="Small transformers over HTTP, with the evidence for their answers.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.context = Context(registry, batcher, settings)
    # What is added last is outermost: answers to faults are put into the envelope as well.
    app.add_middleware(ServerErrorMiddleware, handler=_on_fault)
    app.add_middleware(Envelope)
    for router in (
        inference.router,
        latents.npy_router,
        latents.router,
        catalogue.router,
        health.router,
    ):
        app.include_router(router)
    app.add_exception_handler(TriwireError, _on_triwire_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    return app


async def _load(registry: Registry, settings: Settings) -> None:
    try:
        await asyncio.to_thread(registry.load, settings.checkpoints)
    except (OSError, ValueError) as error:
        logger.error("%s cannot be read: %s", settings.checkpoints, error)
    logger.info("loaded: %s", ", ".join(sorted(registry.models)) or "nothing")


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
    param, message = explain(error.errors())
    return _answer(request, 422, "invalid_request_error", "invalid_value", message, param)


async def _on_http_exception(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, HTTPException)
    # Not request.url, which cannot be put together from every Host that clients send.
    message = f"{request.method} {excerpt(request.scope['path'])}: {error.detail}"
    answer = _answer(
        request, error.status_code, "invalid_request_error", "no_such_call", message, None
    )
    answer.headers.update(error.headers or {})
    return answer


async def _on_fault(request: Request, error: Exception) -> JsonResponse:
    logger.error("request %s failed", request.state.request_id, exc_info=error)
    message = "an internal error; the log has the details under this request id"
    return _answer(request, 500, "server_error", "internal_error", message, None)

"""Errors as answers: one table of statuses, and the body that clients of each protocol expect."""

import logging

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ExceptionHandler, Scope

from service import errors
from service.errors import TriwireError, excerpt
from service.transport import JsonResponse
from service.validation import explain

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1

# Status, OpenAI error type and code of every error that a request can meet.
TABLE: dict[type[TriwireError], tuple[int, str, str]] = {
    errors.MalformedRequest: (400, "invalid_request_error", "malformed_request"),
    errors.Unauthorized: (401, "authentication_error", "invalid_api_key"),
    errors.Forbidden: (403, "permission_error", "not_allowed"),
    errors.ModelNotFound: (404, "invalid_request_error", "model_not_found"),
    errors.TooLarge: (413, "invalid_request_error", "too_large"),
    errors.UnsupportedMedia: (415, "invalid_request_error", "unsupported_media_type"),
    errors.InvalidInput: (422, "invalid_request_error", "invalid_value"),
    errors.Overloaded: (429, "rate_limit_error", "queue_full"),
    errors.NonFiniteOutput: (500, "server_error", "non_finite_output"),
    errors.NotReady: (503, "server_error", "not_ready"),
    errors.DeadlineExceeded: (504, "server_error", "deadline_exceeded"),
}
# The same of whatever else is raised.
FAULT = (500, "server_error", "internal_error")

# What clients of the Hugging Face protocol are told of a status; everything else is "validation".
HUGGING_FACE_TYPES = {
    401: "authentication",
    403: "permission",
    429: "overloaded",
    500: "backend",
    503: "unhealthy",
    504: "timeout",
}


def call_path(scope: Scope) -> str:
    """The path of a call as the routes know it, whether or not a proxy left its prefix on."""
    path, prefix = scope["path"], scope.get("root_path", "").rstrip("/")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def error_content(request: Request, error: Exception) -> dict[str, object]:
    """The body of the answer to any error, for where the status has been sent already."""
    if not isinstance(error, TriwireError):
        return _content(request, *FAULT, _fault_message(request, error), None)
    status, error_type, code = TABLE[type(error)]
    return _content(request, status, error_type, code, _message(request, error), error.param)


def _message(request: Request, error: TriwireError) -> str:
    if TABLE[type(error)][0] != 500:
        return str(error)
    logger.error("request %s: %s", request.state.request_id, error)
    return "the model gave no usable answer; the log has the details"


def answer_triwire_error(request: Request, error: Exception) -> JsonResponse:
    """The answer to an error of ours."""
    assert isinstance(error, TriwireError)
    status, error_type, code = TABLE[type(error)]
    message = _message(request, error)
    answer = _answer(request, status, error_type, code, message, error.param)
    if isinstance(error, errors.Unauthorized):
        detail = ' error="invalid_token"' if error.has_key else ""
        answer.headers["WWW-Authenticate"] = f"Bearer{detail}"
    return answer


async def on_triwire_error(request: Request, error: Exception) -> JsonResponse:
    """Handles what routes and tasks raise."""
    return answer_triwire_error(request, error)


async def on_invalid_request(request: Request, error: Exception) -> JsonResponse:
    """Handles what does not fit the schema."""
    assert isinstance(error, RequestValidationError)
    param, message = explain(error.errors())
    return _answer(request, 422, "invalid_request_error", "invalid_value", message, param)


async def on_http_exception(request: Request, error: Exception) -> JsonResponse:
    """Handles what the framework refuses: unknown paths and other methods."""
    assert isinstance(error, HTTPException)
    # Not request.url, which cannot be put together from every Host that clients send.
    message = f"{request.method} {excerpt(request.scope['path'])}: {error.detail}"
    answer = _answer(
        request, error.status_code, "invalid_request_error", "no_such_call", message, None
    )
    answer.headers.update(error.headers or {})
    return answer


async def on_fault(request: Request, error: Exception) -> JsonResponse:
    """Handles whatever else is raised: a fault of ours, with no internals in the answer."""
    return _answer(request, *FAULT, _fault_message(request, error), None)


# What the application has answer what is raised, by its kind.
HANDLERS: dict[type[Exception], ExceptionHandler] = {
    TriwireError: on_triwire_error,
    RequestValidationError: on_invalid_request,
    HTTPException: on_http_exception,
}


def _fault_message(request: Request, error: Exception) -> str:
    logger.error("request %s failed", request.state.request_id, exc_info=error)
    return "an internal error; the log has the details under this request id"


def _answer(
    request: Request, status: int, error_type: str, code: str, message: str, param: str | None
) -> JsonResponse:
    content = _content(request, status, error_type, code, message, param)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else None
    return JsonResponse(content, status_code=status, headers=headers)


def _content(
    request: Request, status: int, error_type: str, code: str, message: str, param: str | None
) -> dict[str, object]:
    """The body of an error as the protocol of the path has it."""
    path = call_path(request.scope)
    if path.startswith("/v2/") or path == "/v2":
        return {"error": message}
    if path.startswith("/models/"):
        return {"error": message, "error_type": HUGGING_FACE_TYPES.get(status, "validation")}
    return {
        "error": {
            "message": message,
            "type": error_type,
            "param": param,
            "code": code,
            "request_id": request.state.request_id,
        }
    }

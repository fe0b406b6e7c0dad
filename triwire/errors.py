"""The one exception of the client, and how an answer becomes it."""

import json
from typing import Any, TypeVar

import httpx2

T = TypeVar("T")
# What the client itself finds, where no answer of the service says it.
INVALID_VALUE = "invalid_value"
NO_CONNECTION = "no_connection"
CONNECTION_LOST = "connection_lost"
TIMEOUT = "timeout"
UNEXPECTED_ANSWER = "unexpected_answer"
# How much of an answer that is no JSON is told.
MAX_EXCERPT = 80


class TriwireError(Exception):
    """A call that gave no result.

    ``status`` is that of the answer, or None where there was none. ``code`` says what kind of error
    it is: that of the service ("invalid_value", "model_not_found", "queue_full", ...), or
    "no_connection", "connection_lost", "timeout" or "unexpected_answer". ``param`` is the field at
    fault, where one is, and ``request_id`` what the log of the service calls the request.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | None = None,
        param: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.param = param
        self.request_id = request_id

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets it be pickled, as results of worker processes are."""
        return _restore, (self.message, self.code, self.status, self.param, self.request_id)


def _restore(
    message: str, code: str, status: int | None, param: str | None, request_id: str | None
) -> TriwireError:
    return TriwireError(message, code=code, status=status, param=param, request_id=request_id)


def invalid(param: str, message: str) -> TriwireError:
    """The error for a value that cannot be sent at all."""
    return TriwireError(f"{param}: {message}", code=INVALID_VALUE, param=param)


def of_answer(response: httpx2.Response) -> TriwireError:
    """The error that an answer tells; its body must have been read."""
    request_id = response.headers.get("x-request-id")
    try:
        error = response.json()["error"]
        return of_content(error, response.status_code, request_id)
    except (ValueError, TypeError, KeyError):
        return unexpected(response, "expected an error as JSON")


def of_content(
    error: dict[str, Any], status: int | None, request_id: str | None = None
) -> TriwireError:
    """The error that the field ``error`` of an answer, or of an event, tells."""
    return TriwireError(
        str(error["message"]),
        code=str(error["code"]),
        status=status,
        param=error.get("param"),
        request_id=error.get("request_id") or request_id,
    )


def require_result(results: list[T]) -> T:
    """The one result of a stream, once there is one.

    Raises:
        TriwireError: if there is none, as the stream was left.
    """
    if not results:
        raise TriwireError("the stream was left before its end", code=CONNECTION_LOST)
    return results[0]


def unexpected(response: httpx2.Response, expected: str) -> TriwireError:
    """The error for an answer that is none of this service."""
    kind = response.headers.get("content-type", "no content type")
    excerpt = " ".join(response.text[:MAX_EXCERPT].split())
    return TriwireError(
        f"{expected} from {response.url}, got status {response.status_code} and {kind} that begins "
        f"with {excerpt!r}; is this the address of Triwire?",
        code=UNEXPECTED_ANSWER,
        status=response.status_code,
        request_id=response.headers.get("x-request-id"),
    )


def of_transport(
    error: httpx2.HTTPError | httpx2.InvalidURL, url: str, timeout_s: float
) -> TriwireError:
    """The error for a request that met with no answer at all."""
    if isinstance(error, httpx2.ConnectError):
        return TriwireError(
            f"cannot connect to {url} ({_reason(error)}); start the service with `triwire serve`, "
            "or say where it is by base_url, --url or TRIWIRE_URL",
            code=NO_CONNECTION,
        )
    if isinstance(error, httpx2.TimeoutException):
        return TriwireError(f"no answer from {url} within {timeout_s:g} s", code=TIMEOUT)
    return TriwireError(
        f"the connection to {url} was lost ({_reason(error)})", code=CONNECTION_LOST
    )


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def parse(text: str | bytes) -> Any:
    """The value of JSON.

    Raises:
        ValueError: if it is none.
    """
    return json.loads(text)

"""What both clients share: where the service is, who asks, and what becomes of an answer."""

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
import numpy as np

from triwire import errors
from triwire.calls.request import NPY, Call, Request
from triwire.reading import UnexpectedContent
from triwire.version import __version__

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "TRIWIRE_URL"
KEY_VARIABLE = "TRIWIRE_API_KEY"
TIMEOUT_S = 60.0
MAX_RETRIES = 2
LONGEST_WAIT_S = 1e6
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """An address with a key; ``timeout_s`` is for a call with all its attempts."""

    url: httpx2.URL
    key: str | None
    timeout_s: float
    max_retries: int

    @classmethod
    def choose(
        cls, base_url: str | None, api_key: str | None, timeout_s: float, max_retries: int
    ) -> "Connection":
        """The connection that the arguments ask for, or else variables of the environment.

        Raises:
            TriwireError: if one of them makes no sense.
        """
        if not timeout_s > 0:
            raise errors.invalid("timeout_s", f"expected seconds above 0, got {timeout_s}")
        if max_retries < 0:
            raise errors.invalid("max_retries", f"expected 0 or more, got {max_retries}")
        return cls(
            url=_url(base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL),
            key=_key(api_key or os.environ.get(KEY_VARIABLE) or None),
            timeout_s=timeout_s,
            max_retries=max_retries,
        )

    @property
    def options(self) -> dict[str, Any]:
        """What an HTTP client is made with. A proxy is of no use for what is on this machine."""
        headers = {"User-Agent": f"triwire/{__version__}"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        is_here = self.url.host in LOOPBACK
        return {"base_url": self.url, "headers": headers, "trust_env": not is_here}

    def request(
        self,
        http: httpx2.Client | httpx2.AsyncClient,
        call: Request,
        timeout_s: float,
    ) -> httpx2.Request:
        """The request of a call, of which no step takes longer than ``timeout_s``."""
        headers, content = {}, call.content
        if call.json is not None:
            headers["Content-Type"] = "application/json"
            # Escapes let through what is no Unicode, so that the service can say where it is.
            content = _to_json(call.json)
        elif content is not None:
            headers["Content-Type"] = NPY
        return http.build_request(
            call.method,
            call.path,
            content=content,
            params=call.params,
            headers=headers,
            # Sockets cannot wait for longer than that, which is no wait that ends.
            timeout=timeout_s if timeout_s < LONGEST_WAIT_S else None,
        )

    def finish(self, call: Call[T], outcome: httpx2.Response | httpx2.HTTPError) -> T:
        """The result of a call, from the answer that was read or from what came in its place.

        Raises:
            TriwireError: if it is none.
        """
        response = self.require_answer(outcome)
        if not response.is_success and not (call.is_probe and response.status_code == 503):
            raise errors.of_answer(response)
        try:
            return call.read(response)
        except UnexpectedContent as error:
            raise errors.unexpected(response, str(error)) from error
        except (LookupError, TypeError, ValueError) as error:
            raise errors.unexpected(response, f"expected an answer to {call.path}") from error

    def require_stream(self, outcome: httpx2.Response | httpx2.HTTPError) -> httpx2.Response:
        """The answer to a stream that has begun.

        Raises:
            TriwireError: if it is an error, or there is none.
        """
        response = self.require_answer(outcome)
        if not response.is_success:
            raise errors.of_answer(response)
        return response

    def require_answer(self, outcome: httpx2.Response | httpx2.HTTPError) -> httpx2.Response:
        """The answer, of whatever status.

        Raises:
            TriwireError: if there is none.
        """
        if isinstance(outcome, httpx2.HTTPError):
            raise errors.of_transport(outcome, str(self.url), self.timeout_s) from outcome
        return outcome


def _to_json(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, separators=(",", ":"), default=_to_plain).encode()
    except (TypeError, ValueError) as error:
        raise errors.TriwireError(
            f"expected values that JSON can hold: {error}", code=errors.INVALID_VALUE
        ) from None


def _to_plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"got {type(value).__name__}")


def _url(text: str) -> httpx2.URL:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise errors.invalid("base_url", f"expected http://HOST:PORT or https://..., got {text!r}")
    return url


def _key(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise errors.invalid("api_key", "expected printable ASCII characters, got others")
    return key


def like(build: Callable[..., Any], method: Any) -> Any:
    """``method`` with the signature of ``build`` behind ``self``, as help and editors show it."""
    signature = inspect.signature(build)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [this, *signature.parameters.values()]
    method.__signature__ = signature.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
    return method

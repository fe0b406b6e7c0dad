"""Server-sent events, from pieces of bytes to what they hold."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import httpx2

from triwire import errors
from triwire.calls.request import StreamCall
from triwire.reading import UnexpectedContent

T = TypeVar("T")
Event = TypeVar("Event")
DATA = b"data:"
DONE = b"[DONE]"


class Reader(Generic[Event, T]):
    """Reads the events of one answer; knows nothing of how its bytes arrive."""

    def __init__(self, call: StreamCall[Event, T], response: httpx2.Response) -> None:
        self._call = call
        self._response = response
        self._rest = b""
        self._contents: list[Any] = []
        self._is_done = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that end in the next bytes.

        Raises:
            TriwireError: if one of them tells an error, or is none that is known.
        """
        # Not by lines of text, of which Unicode has more ends than the protocol.
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                yield from self._read(line.removeprefix(DATA).strip())

    def _read(self, data: bytes) -> Iterator[Event]:
        if data == DONE:
            self._is_done = True
            return
        try:
            content = errors.parse(data)
            if "error" in content:
                raise errors.of_content(content["error"], None, self._request_id)
            found = self._call.read_events(content)
        except (KeyError, TypeError, ValueError) as error:
            raise self._unexpected(error) from error
        self._contents.append(content)
        yield from found

    def result(self) -> T:
        """What the events make, once the last has come.

        Raises:
            TriwireError: if the answer broke off before.
        """
        if not self._is_done:
            raise errors.TriwireError(
                "the answer broke off before its end",
                code=errors.CONNECTION_LOST,
                request_id=self._request_id,
            )
        try:
            return self._call.result(self._contents, self._response)
        except (LookupError, TypeError, UnexpectedContent) as error:
            raise self._unexpected(error) from error

    @property
    def _request_id(self) -> str | None:
        return self._response.headers.get("x-request-id")

    def _unexpected(self, error: Exception) -> errors.TriwireError:
        return errors.TriwireError(
            f"expected events of {self._call.path}, got others ({error})",
            code=errors.UNEXPECTED_ANSWER,
            request_id=self._request_id,
        )

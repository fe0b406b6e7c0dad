"""The blocking client."""

import functools
from collections.abc import Callable, Generator, Iterator
from time import sleep
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import httpx2

from triwire import calls, errors
from triwire.calls.request import Call, Request, StreamCall
from triwire.connection import MAX_RETRIES, TIMEOUT_S, Connection, like
from triwire.events import Reader
from triwire.retries import Attempts

P = ParamSpec("P")
T = TypeVar("T")
Event = TypeVar("Event")


class Stream(Generic[Event, T]):
    """Events of one answer, as they come; ``result`` is what they make.

    Nothing is sent before the first is asked for. Leaving the ``with`` block ends the request.
    """

    def __init__(self, client: "Triwire", call: StreamCall[Event, T]) -> None:
        self._results: list[T] = []
        self._events = self._read(client, call)

    def _read(self, client: "Triwire", call: StreamCall[Event, T]) -> Generator[Event, None, None]:
        response = client.open(call)
        try:
            reader = Reader(call, response)
            for data in response.iter_bytes():
                yield from reader.feed(data)
            self._results.append(reader.result())
        except httpx2.HTTPError as error:
            client.connection.require_answer(error)
        finally:
            response.close()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def result(self) -> T:
        """What all events make; waits for those that have not come yet.

        Raises:
            TriwireError: if the answer broke off, or the stream was left.
        """
        for _ in self._events:
            pass
        return errors.require_result(self._results)

    def close(self) -> None:
        """Ends the request."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _blocking(build: Callable[P, Call[T]]) -> "Callable[Concatenate[Triwire, P], T]":
    """The method that sends a call and waits for its answer."""

    @functools.wraps(build)
    def method(self: "Triwire", *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    return like(build, method)


def _streaming(
    build: Callable[P, StreamCall[Event, T]],
) -> "Callable[Concatenate[Triwire, P], Stream[Event, T]]":
    """The method that gives the events of a call."""

    @functools.wraps(build)
    def method(self: "Triwire", *args: P.args, **kwargs: P.kwargs) -> Stream[Event, T]:
        return self.stream(build(*args, **kwargs))

    return like(build, method)


class Triwire:
    """A client of the service at ``base_url``; one may be shared by threads.

    By default the address is that of ``TRIWIRE_URL``, else http://127.0.0.1:8000, and the key that
    of ``TRIWIRE_API_KEY``, else none. A call takes ``timeout_s`` at most, with its ``max_retries``;
    a stream may take that long between two events. ``transport`` replaces the network.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.connection = Connection.choose(base_url, api_key, timeout_s, max_retries)
        self._http = httpx2.Client(**self.connection.options, transport=transport)

    fill_mask = _blocking(calls.fill_mask)
    decode = _blocking(calls.decode)
    decode_stream = _streaming(calls.decode_stream)
    latents = _blocking(calls.latents)
    embeddings = _blocking(calls.embeddings)
    complete = _blocking(calls.complete)
    complete_stream = _streaming(calls.complete_stream)
    models = _blocking(calls.models)
    model = _blocking(calls.model)
    plot = _blocking(calls.plot)
    reload = _blocking(calls.reload)
    live = _blocking(calls.live)
    ready = _blocking(calls.ready)

    def send(self, call: Call[T]) -> T:
        """The result of any call.

        Raises:
            TriwireError: if it has none.
        """
        return self.connection.finish(call, self._attempt(call))

    def stream(self, call: StreamCall[Event, T]) -> Stream[Event, T]:
        """The events of any call that has some."""
        return Stream(self, call)

    def open(self, call: StreamCall[Any, Any]) -> httpx2.Response:
        """The answer to a call, whose events have not been read yet.

        Raises:
            TriwireError: if it is an error.
        """
        return self.connection.require_stream(self._attempt(call))

    def _attempt(self, request: Request) -> httpx2.Response | httpx2.HTTPError:
        """What came of the last attempt."""
        attempts = Attempts(self.connection, request)
        while True:
            outcome = self._try_once(request, attempts.remaining_s)
            pause_s = attempts.pause_s(outcome)
            if pause_s is None:
                return outcome
            sleep(pause_s)

    def _try_once(self, request: Request, timeout_s: float) -> httpx2.Response | httpx2.HTTPError:
        """An answer, that of a stream with its events unread, or what came in its place."""
        sent = self.connection.request(self._http, request, timeout_s)
        try:
            response = self._http.send(sent, stream=True)
            if not (isinstance(request, StreamCall) and response.is_success):
                response.read()
        except httpx2.HTTPError as error:
            return error
        return response

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

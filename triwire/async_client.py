"""The asynchronous client."""

import functools
from asyncio import sleep
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
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


class AsyncStream(Generic[Event, T]):
    """Events of one answer, as they come; ``result`` is what they make.

    Nothing is sent before the first is asked for. Leaving the ``async with`` block ends the
    request.
    """

    def __init__(self, client: "AsyncTriwire", call: StreamCall[Event, T]) -> None:
        self._results: list[T] = []
        self._events = self._read(client, call)

    async def _read(
        self, client: "AsyncTriwire", call: StreamCall[Event, T]
    ) -> AsyncGenerator[Event, None]:
        response = await client.open(call)
        try:
            reader = Reader(call, response)
            async for data in response.aiter_bytes():
                for event in reader.feed(data):
                    yield event
            self._results.append(reader.result())
        except httpx2.HTTPError as error:
            client.connection.require_answer(error)
        finally:
            await response.aclose()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def result(self) -> T:
        """What all events make; waits for those that have not come yet.

        Raises:
            TriwireError: if the answer broke off, or the stream was left.
        """
        async for _ in self._events:
            pass
        return errors.require_result(self._results)

    async def close(self) -> None:
        """Ends the request."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _awaited(build: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncTriwire, P], Awaitable[T]]":
    """The method that sends a call and awaits its answer."""

    @functools.wraps(build)
    async def method(self: "AsyncTriwire", *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    return like(build, method)


def _streaming(
    build: Callable[P, StreamCall[Event, T]],
) -> "Callable[Concatenate[AsyncTriwire, P], AsyncStream[Event, T]]":
    """The method that gives the events of a call."""

    @functools.wraps(build)
    def method(self: "AsyncTriwire", *args: P.args, **kwargs: P.kwargs) -> AsyncStream[Event, T]:
        return self.stream(build(*args, **kwargs))

    return like(build, method)


class AsyncTriwire:
    """The asynchronous form of ``Triwire``: the same arguments, and every call is awaited."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.connection = Connection.choose(base_url, api_key, timeout_s, max_retries)
        self._http = httpx2.AsyncClient(**self.connection.options, transport=transport)

    fill_mask = _awaited(calls.fill_mask)
    decode = _awaited(calls.decode)
    decode_stream = _streaming(calls.decode_stream)
    latents = _awaited(calls.latents)
    embeddings = _awaited(calls.embeddings)
    complete = _awaited(calls.complete)
    complete_stream = _streaming(calls.complete_stream)
    models = _awaited(calls.models)
    model = _awaited(calls.model)
    plot = _awaited(calls.plot)
    reload = _awaited(calls.reload)
    live = _awaited(calls.live)
    ready = _awaited(calls.ready)

    async def send(self, call: Call[T]) -> T:
        """The result of any call.

        Raises:
            TriwireError: if it has none.
        """
        return self.connection.finish(call, await self._attempt(call))

    def stream(self, call: StreamCall[Event, T]) -> AsyncStream[Event, T]:
        """The events of any call that has some."""
        return AsyncStream(self, call)

    async def open(self, call: StreamCall[Any, Any]) -> httpx2.Response:
        """The answer to a call, whose events have not been read yet.

        Raises:
            TriwireError: if it is an error.
        """
        return self.connection.require_stream(await self._attempt(call))

    async def _attempt(self, request: Request) -> httpx2.Response | httpx2.HTTPError:
        """What came of the last attempt."""
        attempts = Attempts(self.connection, request)
        while True:
            outcome = await self._try_once(request, attempts.remaining_s)
            pause_s = attempts.pause_s(outcome)
            if pause_s is None:
                return outcome
            await sleep(pause_s)

    async def _try_once(
        self, request: Request, timeout_s: float
    ) -> httpx2.Response | httpx2.HTTPError:
        """An answer, that of a stream with its events unread, or what came in its place."""
        sent = self.connection.request(self._http, request, timeout_s)
        try:
            response = await self._http.send(sent, stream=True)
            if not (isinstance(request, StreamCall) and response.is_success):
                await response.aread()
        except httpx2.HTTPError as error:
            return error
        return response

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

"""How bodies are read and written: up to a limit, as JSON to the letter.

Work for a client that has left is given up, so that nothing is computed for nobody.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from service.encoding import to_json, to_json_if_small
from service.envelope import CLIENT_LEFT
from service.errors import MalformedRequest, TooLarge, UnsupportedMedia, excerpt

# An answer is mostly given by then.
WATCHED_AFTER_S = 0.1


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
            chunks, size, more = [], 0, True
            while more:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunks.append(message.get("body", b""))
                more = message.get("more_body", False)
                size += len(chunks[-1])
                if size > limit:
                    raise TooLarge(f"expected a body of at most {limit} bytes, got more")
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
            self.require_kind(request.headers)
            return await self.answer(StrictRequest(request.scope, request.receive), handler)

        return strict

    async def answer(
        self,
        request: StrictRequest,
        handler: Callable[[StrictRequest], Coroutine[Any, Any, Response]],
    ) -> Response:
        """What ``handler`` answers to the request once its body is read, if its client stays."""
        try:
            # Read here, because FastAPI answers whatever its own reading raises with 400.
            request = await self.read(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)
        response = await _unless_client_leaves(request, handler(request))
        request.state.usage = getattr(response, "usage", None)
        return response

    async def read(self, request: StrictRequest) -> StrictRequest:
        """What the handler is given: the request, its body read and found to be right so far."""
        await request.json()
        return request

    def require_kind(self, headers: Headers) -> None:
        """Checks that the body is of a type that this route takes.

        Raises:
            UnsupportedMedia: if it is of another.
        """
        if (kind := body_kind(headers)) != self.kind:
            raise UnsupportedMedia(
                f"expected {' or '.join(self.expected)}, got {excerpt(kind) if kind else 'none'}",
                "Content-Type",
            )


def body_kind(headers: Headers) -> str:
    """The media type of a body, without its parameters; empty where none is named."""
    return headers.get("content-type", "").split(";")[0].strip().lower()


async def _unless_client_leaves(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer that ``work`` gives; it is cancelled when the client closes the connection.

    Whether it does is watched once the work has lasted ``WATCHED_AFTER_S``: a task to watch costs
    more than most of what would be saved before then.
    """
    own = asyncio.current_task()
    assert own
    leaving: asyncio.Task[None] | None = None
    has_left = is_over = False

    def give_up(leaving: asyncio.Task[None]) -> None:
        nonlocal has_left
        if not is_over and not leaving.cancelled():
            has_left = True
            own.cancel()

    def watch() -> None:
        nonlocal leaving
        leaving = asyncio.create_task(_disconnected(request))
        leaving.add_done_callback(give_up)

    watching = asyncio.get_running_loop().call_later(WATCHED_AFTER_S, watch)
    try:
        return await work
    except asyncio.CancelledError:
        # Somebody else may have cancelled this task, too.
        if not has_left or own.cancelling() > 1:
            raise
        return Response(status_code=CLIENT_LEFT)
    finally:
        is_over = True
        watching.cancel()
        if leaving:
            leaving.cancel()
        if has_left:
            own.uncancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class JsonResponse(Response):
    """An answer in JSON: of dataclasses and numpy arrays; bytes are JSON already.

    ``usage`` is that of the content, where it has one.
    """

    media_type = "application/json"
    usage: Any = None

    def render(self, content: Any) -> bytes:
        """``content`` as bytes."""
        self.usage = getattr(content, "usage", None)
        return content if isinstance(content, bytes) else to_json(content)


async def json_response(content: Any, usage: Any = None) -> JsonResponse:
    """An answer; what is long is written in a thread, so that others are served meanwhile.

    ``usage`` is for content that does not tell its own.
    """
    body = to_json_if_small(content)
    if body is None:
        body = await run_in_threadpool(to_json, content)
    response = JsonResponse(body)
    response.usage = usage or getattr(content, "usage", None)
    return response

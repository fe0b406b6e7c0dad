"""Answers that come as they are made: server-sent events, each one line of JSON."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from service.answers import error_content
from service.encoding import to_json

DONE = b"data: [DONE]\n\n"
# Proxies that gather an answer before they pass it on would undo what streaming is for.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def event_stream(request: Request, events: AsyncGenerator[Any, None]) -> StreamingResponse:
    """An answer that tells ``events`` one by one, then ``[DONE]``.

    The first event is awaited before the answer begins, so that what is wrong with the request is
    answered as ever. What goes wrong later is told as an event, since the status has been sent.
    """
    first = await anext(events)
    return StreamingResponse(
        _lines(request, first, events), media_type="text/event-stream", headers=HEADERS
    )


async def _lines(
    request: Request, first: Any, events: AsyncGenerator[Any, None]
) -> AsyncIterator[bytes]:
    event = first
    try:
        while True:
            request.state.usage = getattr(event, "usage", None)
            yield b"data: " + to_json(event) + b"\n\n"
            event = await anext(events)
    except StopAsyncIteration:
        yield DONE
    # Of whatever kind it is: behind a status of 200, a connection that just ends tells nothing.
    except Exception as error:  # noqa: BLE001
        yield b"data: " + to_json(error_content(request, error)) + b"\n\n"
    finally:
        await events.aclose()

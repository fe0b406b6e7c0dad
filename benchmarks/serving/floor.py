"""The floor: an application that reads a request and answers with bytes that it was given.

Run by uvicorn with ``benchmarks.serving.floor:app``; ``FLOOR_ANSWER`` holds the answer. What a
server adds to it is what it does beyond speaking HTTP.
"""

import os
from typing import Any

ANSWER = os.environ.get("FLOOR_ANSWER", "{}").encode()
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
START = {"type": "http.response.start", "status": 200, "headers": HEADERS}
BODY = {"type": "http.response.body", "body": ANSWER}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Serves one request."""
    assert scope["type"] == "http", "run with --lifespan off"
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send(BODY)

"""A small server whose answers are written beforehand."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# An answer that is one chunk of an event stream, after which the connection just ends.
EVENT_STREAM = {"Content-Type": "text/event-stream"}
TOKEN = {"index": 0, "position": 0, "token": "a", "logprob": -0.5}
DECODED = {
    "model": "reversal",
    "version": 1,
    "results": [{"output": "a", "finish_reason": "stop", "tokens": []}],
}
READY = {"status": "ready", "models": ["reversal"], "failures": {}}


@dataclass
class Answer:
    """An answer; ``body`` None ends the connection without one, and ``is_late`` never gives it."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    is_late: bool = False


def error(status: int, code: str = "invalid_value", **headers: str) -> Answer:
    """An error as the service tells it."""
    detail = {"message": "inputs: expected more", "type": "t", "param": "inputs", "code": code}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"error": detail | {"request_id": "r1"}}, named)


def events(*contents: Any) -> Answer:
    """A stream of events."""
    told = (content if isinstance(content, str) else json.dumps(content) for content in contents)
    return Answer(200, "".join(f"data: {text}\n\n" for text in told).encode(), EVENT_STREAM)


@dataclass
class Scripted:
    """The server: its address, what it was asked, and what it will answer."""

    url: str
    answers: list[Answer]
    asked: list[dict[str, Any]]


@contextlib.contextmanager
def scripted(*answers: Answer, port: int = 0) -> Iterator[Scripted]:
    """A server that gives these answers in order, one a request."""
    left, asked, ended = list(answers), [], threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def handle_one(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            asked.append({"path": self.path, "headers": dict(self.headers), "body": body})
            answer = left.pop(0)
            if answer.is_late:
                ended.wait()
            if answer.is_late or answer.body is None:
                return
            content = answer.body
            if not isinstance(content, bytes):
                content = json.dumps(content).encode()
            self.send_response(answer.status)
            for name, value in ({"Content-Type": "application/json"} | answer.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = handle_one  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Scripted(f"http://127.0.0.1:{server.server_port}", left, asked)
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()

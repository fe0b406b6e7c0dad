"""HTTP/1.1 as far as a load generator needs it: requests to bytes, bytes to answers."""

import re
from typing import NamedTuple

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
END_OF_HEAD = b"\r\n\r\n"


class Answer(NamedTuple):
    """An answer that has come in whole, and how many bytes of what was received it took."""

    status: int
    body: bytes
    num_bytes: int


class WireError(ValueError):
    """What came is no answer that can be followed by another one on the same connection."""


def post(path: str, body: bytes, *, port: int) -> bytes:
    """A request whose connection is kept."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def first_answer(received: bytes | bytearray) -> Answer | None:
    """The first answer in what was received; None while it is not whole.

    Raises:
        WireError: if it has no status, or does not say how long it is.
    """
    end = received.find(END_OF_HEAD)
    if end < 0:
        return None
    if not received.startswith(b"HTTP/1.1 "):
        raise WireError(f"expected an answer in HTTP/1.1, got {bytes(received[:40])!r}")
    status, start = int(received[9:12]), end + len(END_OF_HEAD)
    if length := LENGTH.search(received, 0, end):
        stop = start + int(length[1])
        whole = stop <= len(received)
        return Answer(status, bytes(received[start:stop]), stop) if whole else None
    if not CHUNKED.search(received, 0, end):
        raise WireError("expected an answer with a Content-Length or in chunks, got neither")
    return _joined(received, status, start)


def _joined(received: bytes | bytearray, status: int, start: int) -> Answer | None:
    """An answer in chunks, without trailers."""
    parts = []
    while (end := received.find(b"\r\n", start)) >= 0:
        size = int(received[start:end].partition(b";")[0], 16)
        start, stop = end + 2, end + 2 + size
        if len(received) < stop + 2:
            return None
        if not size:
            return Answer(status, b"".join(parts), stop + 2)
        parts.append(bytes(received[start:stop]))
        start = stop + 2
    return None

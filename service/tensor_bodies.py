"""Bodies of the Open Inference Protocol: JSON with raw tensors behind it, compressed or not.

``Inference-Header-Content-Length`` says how long the JSON is; without it, all is JSON. Where it is
0, there is none: the body is one text as it is, and outputs come raw.
"""

import gzip
import zlib
from dataclasses import dataclass

from service.encoding import to_json
from service.errors import MalformedRequest, TooLarge, UnsupportedMedia, excerpt
from service.tensor_schemas import InferAnswer
from service.tensors import LENGTH_BYTES

LENGTH_HEADER = "Inference-Header-Content-Length"
# What zlib calls the framing of each; "deflate" on the wire is zlib's own format.
WINDOW_BITS = {"gzip": 31, "deflate": 15}
# The input that a body without JSON is; every model takes it.
RAW_INPUT = "text"
# Below this, a compressed answer is hardly shorter.
SMALLEST_COMPRESSED_BYTES = 1024
# Latents hardly shrink whatever is tried, so what is fast is best.
COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Body:
    """The JSON of a body, and what lies behind it."""

    head: bytes
    tail: bytes


def decompress(body: bytes, coding: str, limit: int) -> bytes:
    """``body`` as it was before it was compressed, as its ``Content-Encoding`` says.

    Raises:
        UnsupportedMedia: if it is compressed in another way than gzip or deflate.
        MalformedRequest: if it is not what it says, or does not end where it should.
        TooLarge: if it is of more than ``limit`` bytes.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in WINDOW_BITS:
        raise UnsupportedMedia(
            f"expected gzip, deflate or identity, got {excerpt(coding)}", "Content-Encoding"
        )
    stream = zlib.decompressobj(WINDOW_BITS[coding])
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error:
        raise MalformedRequest(
            f"expected a body compressed by {coding}, got another one", "Content-Encoding"
        ) from None
    if len(plain) > limit:
        raise TooLarge(f"expected a body of at most {limit} bytes once decompressed, got more")
    if not stream.eof or stream.unused_data:
        got = "more behind it" if stream.eof else "less"
        raise MalformedRequest(
            f"expected a whole body compressed by {coding}, got {got}", "Content-Encoding"
        )
    return plain


def split(body: bytes, length: str | None) -> Body:
    """``body`` taken apart as its ``Inference-Header-Content-Length`` says.

    Raises:
        MalformedRequest: if that is no number of bytes, or more than there are.
    """
    if length is None:
        return Body(body, b"")
    # More digits than any body has bytes; their number would take long to read.
    is_number = length.isascii() and length.isdecimal() and len(length) < 20
    if not is_number or int(length) > len(body):
        raise MalformedRequest(
            f"expected a number of bytes from 0 to {len(body)}, the length of the body, "
            f"got {excerpt(length)}",
            LENGTH_HEADER,
        )
    if int(length) == 0:
        return _raw(body)
    return Body(body[: int(length)], body[int(length) :])


def _raw(body: bytes) -> Body:
    """What a body that is nothing but one text stands for."""
    size = LENGTH_BYTES + len(body)
    head = {
        "inputs": [
            {
                "name": RAW_INPUT,
                "shape": [1],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": size},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    return Body(to_json(head), len(body).to_bytes(LENGTH_BYTES, "little") + body)


def join(answer: InferAnswer, tail: bytes, *, is_binary: bool) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, with the headers that say how to take it apart."""
    head = to_json(answer)
    if not is_binary:
        return head, {"Content-Type": "application/json"}
    return head + tail, {
        "Content-Type": "application/octet-stream",
        LENGTH_HEADER: str(len(head)),
    }


def compress(body: bytes, accepted: str) -> tuple[bytes, dict[str, str]]:
    """``body`` in a coding that ``Accept-Encoding`` names, with the header that says which."""
    coding = choose_coding(accepted)
    if coding is None or len(body) < SMALLEST_COMPRESSED_BYTES:
        return body, {"Vary": "Accept-Encoding"}
    if coding == "gzip":
        body = gzip.compress(body, COMPRESSION_LEVEL, mtime=0)
    else:
        body = zlib.compress(body, COMPRESSION_LEVEL)
    return body, {"Content-Encoding": coding, "Vary": "Accept-Encoding"}


def choose_coding(accepted: str) -> str | None:
    """The coding of ours that ``Accept-Encoding`` likes best, or None."""
    liked = {}
    for part in accepted.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        liked[name] = _weight(parameters)
    best = max(WINDOW_BITS, key=lambda coding: liked.get(coding, 0.0))
    return best if liked.get(best, 0.0) > 0 else None


def _weight(parameters: list[str]) -> float:
    """How much a coding is liked, from 0 to 1; 0 where that cannot be read."""
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                weight = float(parameter[2:])
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0

"""Bodies with tensors behind their JSON, compressed or not."""

import gzip
import zlib

import orjson
import pytest

from service.errors import MalformedRequest, TooLarge, UnsupportedMedia
from service.tensor_bodies import (
    COMPRESSION_LEVEL,
    SMALLEST_COMPRESSED_BYTES,
    choose_coding,
    compress,
    decompress,
    join,
    split,
)
from service.tensor_schemas import InferAnswer, OutputTensor

PLAIN = b'{"inputs": []}' + bytes(range(256))
PACKED = {"gzip": gzip.compress(PLAIN), "deflate": zlib.compress(PLAIN)}


@pytest.mark.parametrize("coding", ["", "identity", " Identity "])
def test_a_body_that_is_not_compressed_stays_as_it_is(coding):
    assert decompress(PLAIN, coding, 10) is PLAIN


@pytest.mark.parametrize("coding", PACKED)
def test_a_compressed_body_is_what_it_was(coding):
    assert decompress(PACKED[coding], coding.upper(), len(PLAIN)) == PLAIN


@pytest.mark.parametrize("coding", PACKED)
@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b + b, bytes])
def test_a_compressed_body_that_ends_elsewhere_is_malformed(coding, change):
    body = change(PACKED[coding]) if change is not bytes else b""
    with pytest.raises(
        MalformedRequest, match=f"^Content-Encoding: .* compressed by {coding}, got"
    ):
        decompress(body, coding, 10_000)


@pytest.mark.parametrize(("coding", "other"), [("gzip", "deflate"), ("deflate", "gzip")])
def test_a_body_of_another_compression_is_malformed(coding, other):
    for body in (PACKED[other], PLAIN):
        with pytest.raises(MalformedRequest, match="got another one"):
            decompress(body, coding, 10_000)


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "x-gzip", "zstd", "*"])
def test_other_codings_are_refused_by_name(coding):
    with pytest.raises(UnsupportedMedia, match="expected gzip, deflate or identity, got '"):
        decompress(PLAIN, coding, 10_000)


@pytest.mark.parametrize("coding", PACKED)
def test_what_would_grow_over_the_limit_is_never_unpacked(coding):
    bomb = bytes(50 * 2**20)
    packed = gzip.compress(bomb, 1) if coding == "gzip" else zlib.compress(bomb, 1)
    with pytest.raises(TooLarge, match="at most 1000 bytes once decompressed"):
        decompress(packed, coding, 1000)
    with pytest.raises(TooLarge):
        decompress(PACKED[coding], coding, len(PLAIN) - 1)


def test_the_header_says_where_the_json_ends():
    body = split(PLAIN, "14")
    assert (body.head, body.tail) == (PLAIN[:14], PLAIN[14:])
    assert split(PLAIN, str(len(PLAIN))).tail == b""
    assert split(PLAIN, None).head is PLAIN


def test_without_json_the_body_is_one_text_and_outputs_are_to_be_binary():
    body = split("é<mask>".encode(), "0")
    head = orjson.loads(body.head)
    (given,) = head["inputs"]
    assert head["parameters"] == {"binary_data_output": True}
    assert (given["name"], given["shape"], given["datatype"]) == ("text", [1], "BYTES")
    assert given["parameters"] == {"binary_data_size": len(body.tail)}
    assert body.tail == b"\x08\0\0\0\xc3\xa9<mask>"


@pytest.mark.parametrize(
    "length", ["", "x", "-1", "1.0", "+5", " 5", "0x5", "\u0665", "271", "9" * 19, "9" * 5000, "²"]
)
def test_a_header_that_is_no_length_of_this_body_is_malformed(length):
    with pytest.raises(MalformedRequest) as caught:
        split(PLAIN, length)
    assert str(caught.value).startswith(
        "Inference-Header-Content-Length: expected a number of bytes from 0 to 270, the length of"
    )
    assert len(str(caught.value)) < 200


def test_an_answer_says_where_its_json_ends_only_if_more_lies_behind():
    answer = InferAnswer(
        model_name="m", model_version="1", outputs=[OutputTensor("x", "FP32", [1])]
    )
    body, headers = join(answer, b"abcd", is_binary=True)
    length = int(headers["Inference-Header-Content-Length"])
    assert orjson.loads(body[:length])["model_name"] == "m"
    assert body[length:] == b"abcd"
    assert headers["Content-Type"] == "application/octet-stream"
    body, headers = join(answer, b"", is_binary=False)
    assert orjson.loads(body) == orjson.loads(body[:length])
    assert headers == {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("deflate, GZIP;q=0.5", "deflate"),
        ("gzip;q=0, deflate ; q=0.1", "deflate"),
        ("gzip;q=0", None),
        ("br, zstd", None),
        ("identity", None),
        ("gzip;q=high, deflate;q=7", None),
        ("gzip;q=nan", None),
        (",;;,=", None),
    ],
)
def test_an_answer_is_compressed_as_is_liked_best(accepted, coding):
    assert choose_coding(accepted) == coding


def test_a_compressed_answer_unpacks_to_what_it_was_and_a_short_one_stays():
    body = b"abc " * SMALLEST_COMPRESSED_BYTES
    vary = {"Vary": "Accept-Encoding"}
    packed, headers = compress(body, "gzip")
    assert headers == {"Content-Encoding": "gzip", **vary}
    assert gzip.decompress(packed) == body
    packed, headers = compress(body, "deflate")
    assert headers == {"Content-Encoding": "deflate", **vary}
    assert zlib.decompress(packed) == body
    assert packed == zlib.compress(body, COMPRESSION_LEVEL)
    assert compress(body, "br") == (body, vary)
    assert compress(b"short", "gzip") == (b"short", vary)

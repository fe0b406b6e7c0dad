import pytest

from benchmarks.serving.wire import WireError, first_answer, post

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCONTENT-LENGTH:  5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;name=value\r\n world\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    ("sent", "status", "body"), [(PLAIN, 200, b"hello"), (CHUNKED, 503, b"hello world")]
)
def test_an_answer_is_read_once_it_is_whole_and_not_before(sent, status, body):
    for size in range(len(sent)):
        assert first_answer(sent[:size]) is None
    assert first_answer(bytearray(sent)) == (status, body, len(sent))


def test_what_follows_an_answer_is_left_for_the_next():
    first = first_answer(PLAIN + CHUNKED)
    assert first is not None
    assert first_answer((PLAIN + CHUNKED)[first.num_bytes :]) == (503, b"hello world", len(CHUNKED))


def test_a_length_that_the_body_speaks_of_is_none():
    with pytest.raises(WireError, match="Content-Length or in chunks"):
        first_answer(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n\r\ncontent-length: 3\r\n\r\nabc")


def test_an_older_protocol_is_refused():
    with pytest.raises(WireError, match="expected an answer in"):
        first_answer(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")


def test_a_request_says_how_long_its_body_is():
    sent = post("/v1/fill-mask", "ü".encode(), port=80)
    assert sent.startswith(b"POST /v1/fill-mask HTTP/1.1\r\n")
    assert b"\r\nContent-Length: 2\r\n" in sent
    assert sent.endswith("\r\n\r\nü".encode())

"""What a client makes of any answer, and of none; each by both clients."""

import io
import pickle
import socket
import tomllib
from pathlib import Path

import httpx2
import numpy as np
import pytest

import triwire
from tests.triwire.scripted import DECODED, READY, TOKEN, Answer, error, events, scripted
from triwire import Triwire, TriwireError, calls
from triwire.events import Reader

ONCE = [400, 401, 403, 404, 413, 415, 422, 500, 504]
BUSY = [429, 503]


@pytest.mark.parametrize("status", BUSY)
def test_a_busy_service_is_asked_again(ask, pauses, status):
    with scripted(error(status), error(status), Answer(200, DECODED)) as server:
        assert ask(server.url, "decode", "a").output == "a"
    assert len(server.asked) == 3
    assert len({request["body"] for request in server.asked}) == 1
    # Twice as long every time, and up to a quarter more.
    assert 0.25 <= pauses[0] <= 0.3125
    assert 0.5 <= pauses[1] <= 0.625


@pytest.mark.parametrize("asked", ["7", "Wed, 21 Oct 2099 07:28:00 GMT", "soon", "-3"])
def test_a_pause_is_at_least_what_retry_after_says(ask, pauses, asked):
    busy = error(429, Retry_After=asked)
    with scripted(busy, Answer(200, DECODED)) as server:
        assert ask(server.url, "decode", "a", how={"timeout_s": 1e10}).output == "a"
    (pause,) = pauses
    if asked == "7":
        assert 7 <= pause <= 8.75
    else:
        assert pause > 1e9 if "2099" in asked else pause < 1


def test_nobody_waits_longer_than_a_call_may_take(ask, pauses):
    with (
        scripted(error(429, "queue_full", Retry_After="60")) as server,
        pytest.raises(TriwireError) as caught,
    ):
        ask(server.url, "decode", "a", how={"timeout_s": 30})
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    assert pauses == []


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_attempts_come_to_an_end(ask, pauses, max_retries):
    with scripted(*[error(503)] * 9) as server, pytest.raises(TriwireError) as caught:
        ask(server.url, "decode", "a", how={"max_retries": max_retries})
    assert caught.value.status == 503
    assert len(server.asked) == max_retries + 1
    assert len(pauses) == max_retries


@pytest.mark.parametrize("status", ONCE)
def test_no_other_answer_is_asked_for_again(ask, pauses, status):
    with (
        scripted(error(status, "some_code"), Answer(200, DECODED)) as server,
        pytest.raises(TriwireError) as caught,
    ):
        ask(server.url, "decode", "a")
    found = caught.value
    assert (found.status, found.code, found.param) == (status, "some_code", "inputs")
    assert (found.message, found.request_id) == ("inputs: expected more", "r1")
    assert len(server.asked) == 1
    assert pauses == []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_refused_connection_is_tried_again_then_told_with_what_to_do(ask, pauses):
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TriwireError) as caught:
        ask(url, "decode", "a")
    assert (caught.value.code, caught.value.status) == ("no_connection", None)
    assert url in caught.value.message
    assert "triwire serve" in caught.value.message
    assert len(pauses) == 2


def test_a_service_that_comes_up_meanwhile_is_reached(ask, pauses):
    port, stack = free_port(), []

    def come_up():
        if not stack:
            stack.append(scripted(Answer(200, DECODED), port=port))
            stack[0].__enter__()

    pauses.also = come_up
    try:
        assert ask(f"http://127.0.0.1:{port}", "decode", "a").output == "a"
    finally:
        for server in stack:
            server.__exit__(None, None, None)


def test_a_lost_connection_is_no_reason_to_do_it_twice(ask, pauses):
    with (
        scripted(Answer(), Answer(200, DECODED)) as server,
        pytest.raises(TriwireError) as caught,
    ):
        ask(server.url, "decode", "a")
    assert caught.value.code == "connection_lost"
    assert len(server.asked) == 1


def test_an_answer_that_does_not_come_is_not_waited_for(ask, pauses):
    with (
        scripted(Answer(is_late=True), Answer(200, DECODED)) as server,
        pytest.raises(TriwireError, match=r"no answer from .* within 0\.1 s") as caught,
    ):
        ask(server.url, "decode", "a", how={"timeout_s": 0.1})
    assert caught.value.code == "timeout"
    assert len(server.asked) <= 1


def test_a_stream_is_asked_for_again_before_its_first_event_only(ask, pauses):
    broken = events(TOKEN)
    with (
        scripted(error(503), broken, events(TOKEN, DECODED, "[DONE]")) as server,
        pytest.raises(TriwireError, match="broke off") as caught,
    ):
        ask(server.url, "decode_stream", "a")
    assert caught.value.code == "connection_lost"
    assert len(server.asked) == 2


def test_what_goes_wrong_within_a_stream_is_an_error(ask, pauses):
    detail = {"message": "queue full", "code": "queue_full", "param": None, "request_id": "r2"}
    with (
        scripted(events(TOKEN, {"error": detail})) as server,
        pytest.raises(TriwireError) as caught,
    ):
        ask(server.url, "decode_stream", "a")
    assert (caught.value.code, caught.value.request_id) == ("queue_full", "r2")
    assert len(server.asked) == 1


def test_events_are_told_apart_wherever_their_bytes_are_cut():
    # Ends of lines to Unicode, and none to the protocol.
    token = TOKEN | {"token": "\u2028\x85é"}
    answer = events(token, DECODED, "[DONE]").body.replace(b"\\u2028", "\u2028".encode())
    for size in (1, 2, 7, len(answer)):
        reader = Reader(calls.decode_stream("a"), httpx2.Response(200))
        pieces = [answer[i : i + size] for i in range(0, len(answer), size)]
        found = [event for piece in pieces for event in reader.feed(piece)]
        assert [event.token for event in found] == ["\u2028\x85é"]
        assert reader.result().output == "a"


STRANGE = [
    (Answer(200, b"<html>hello</html>", {"Content-Type": "text/html"}), "<html>hello"),
    (Answer(404, b"not here", {"Content-Type": "text/plain"}), "not here"),
    (Answer(302, b"", {"Location": "/login"}), "302"),
    (Answer(200, [1]), "decode"),
    (Answer(200, {"results": []}), "decode"),
    (Answer(200, DECODED | {"results": [{"output": 1}]}), "answer.output to be str, got int"),
    (Answer(200, DECODED | {"results": [{"output": "a"}]}), "finish_reason"),
]


@pytest.mark.parametrize(("answer", "told"), STRANGE)
def test_an_answer_of_something_else_is_told_with_its_address(ask, answer, told):
    with scripted(answer) as server, pytest.raises(TriwireError) as caught:
        ask(server.url, "decode", "a")
    assert caught.value.code == "unexpected_answer"
    assert caught.value.status == answer.status
    assert told in caught.value.message
    assert server.url in caught.value.message


def test_fields_that_are_new_do_no_harm(ask):
    result = DECODED["results"][0] | {
        "mood": "good",
        "beams": [{"output": "a", "logprob": 0, "x": 1}],
    }
    content = DECODED | {"results": [result], "usage": {"seconds": 3}, "notes": []}
    with scripted(Answer(200, content)) as server:
        found = ask(server.url, "decode", "a")
    assert found.beams == (triwire.Beam(output="a", logprob=0.0),)
    assert found.origin.usage == triwire.Usage()


def test_a_service_that_is_not_ready_is_an_answer_and_not_asked_again(ask, pauses):
    with scripted(error(503, "not_ready"), Answer(200, READY)) as server:
        first, second = ask(server.url, "ready"), ask(server.url, "ready")
    assert first == triwire.Readiness(is_ready=False, reason="inputs: expected more")
    assert second == triwire.Readiness(is_ready=True, models=("reversal",))
    assert pauses == []


def test_a_request_shows_who_asks(ask, monkeypatch):
    with scripted(*[Answer(200, DECODED)] * 3) as server:
        ask(server.url, "decode", "a")
        ask(server.url, "decode", "a", how={"api_key": "secret"})
        monkeypatch.setenv("TRIWIRE_API_KEY", "another")
        monkeypatch.setenv("TRIWIRE_URL", f"{server.url}/under/")
        ask(None, "decode", "a")
    headers = [request["headers"] for request in server.asked]
    assert [h.get("Authorization") for h in headers] == [None, "Bearer secret", "Bearer another"]
    assert {h["User-Agent"] for h in headers} == {f"triwire/{triwire.__version__}"}
    assert [r["path"] for r in server.asked] == ["/v1/decode"] * 2 + ["/under/v1/decode"]


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(ask, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with scripted(Answer(200, DECODED)) as server:
        assert ask(server.url, "decode", "a").output == "a"


WRONG = [
    ({"base_url": "localhost:8000"}, "base_url", "'localhost:8000'"),
    ({"base_url": "http://"}, "base_url", "http://HOST:PORT"),
    ({"base_url": "http://a:b:c"}, "base_url", "http://HOST:PORT"),
    ({"api_key": "grün"}, "api_key", "printable ASCII"),
    ({"api_key": "two\nlines"}, "api_key", "printable ASCII"),
    ({"timeout_s": 0}, "timeout_s", "got 0"),
    ({"max_retries": -1}, "max_retries", "got -1"),
]


@pytest.mark.parametrize(("arguments", "param", "told"), WRONG)
@pytest.mark.parametrize("kind", [Triwire, triwire.AsyncTriwire])
def test_a_client_that_makes_no_sense_is_not_made(kind, arguments, param, told):
    with pytest.raises(TriwireError) as caught:
        kind(**arguments)
    assert (caught.value.param, caught.value.code) == (param, "invalid_value")
    assert told in caught.value.message
    assert "grün" not in caught.value.message
    assert "two" not in caught.value.message


UNSENDABLE = [
    ("latents", np.zeros(3), "inputs", "float64 of shape (3,)"),
    ("latents", np.zeros((2, 3, 4), np.float32), "inputs", "float32 of shape (2, 3, 4)"),
    ("latents", [np.zeros((2, 3)), "text"], "inputs", "str"),
    ("latents", np.zeros((2, 3), complex), "inputs", "complex128"),
    ("decode", b"bytes", None, "bytes"),
]


@pytest.mark.parametrize(("method", "inputs", "param", "told"), UNSENDABLE)
def test_what_cannot_be_sent_is_an_error_without_a_request(ask, method, inputs, param, told):
    with scripted() as server, pytest.raises(TriwireError) as caught:
        ask(server.url, method, inputs)
    assert (caught.value.param, caught.value.status) == (param, None)
    assert told in caught.value.message
    assert server.asked == []


def test_numbers_of_numpy_are_sent_as_numbers(ask):
    with scripted(Answer(200, {"data": [{"embedding": [1.5, 2]}]})) as server:
        found = ask(server.url, "embeddings", [np.int64(3), 4])
    assert b'"input":[3,4]' in server.asked[0]["body"]
    np.testing.assert_array_equal(found, np.array([1.5, 2], np.float32))


def test_arrays_of_one_shape_travel_as_they_are(ask):
    array = np.arange(6, dtype=np.float32).reshape(3, 2).T
    row = {"latents": "AACAPw==", "shape": [1, 1], "length": 2}
    answer = Answer(200, {"model": "m", "version": 1, "results": [row, row]})
    with scripted(answer) as server:
        first, _ = ask(server.url, "latents", [array, array + 1], model="m n")
    (request,) = server.asked
    assert request["headers"]["Content-Type"] == "application/x-npy"
    assert request["path"] == "/v1/latents?encoding_format=base64&model=m+n"
    sent = np.lib.format.read_array(io.BytesIO(request["body"]))
    np.testing.assert_array_equal(sent, np.stack([array, array + 1]))
    assert first.latents.tolist() == [[1.0]]
    first.latents[0, 0] = 2.0


@pytest.mark.parametrize("latents", ["AAA", "AAAA", [[1.0, 2.0]], [["x"]], None])
def test_an_array_of_another_shape_than_told_is_an_unexpected_answer(ask, latents):
    row = {"latents": latents, "shape": [1, 1], "length": 2}
    with (
        scripted(Answer(200, {"model": "m", "version": 1, "results": [row]})) as server,
        pytest.raises(TriwireError, match="latents to be") as caught,
    ):
        ask(server.url, "latents", "a")
    assert caught.value.code == "unexpected_answer"


CHUNKS = [
    {"index": 0, "text": "a", "logprobs": None, "finish_reason": None},
    {"index": 1, "text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-1.0]}},
    {"index": 0, "text": "b", "finish_reason": "stop"},
    {"index": 1, "text": "y", "logprobs": {"tokens": ["y"], "token_logprobs": [-2.0]}}
    | {"finish_reason": "length"},
]


def test_a_completion_is_put_together_from_its_pieces(ask):
    told = [{"model": "m", "choices": [chunk]} for chunk in CHUNKS]
    last = {"model": "m", "choices": [], "usage": {"completion_tokens": 4}}
    with scripted(events(*told, last, "[DONE]")) as server:
        found = ask(server.url, "complete_stream", "p", n=2, seed=1)
    assert [choice.text for choice in found.choices] == ["ab", "xy"]
    assert [choice.finish_reason for choice in found.choices] == ["stop", "length"]
    assert found.choices[1].logprobs.token_logprobs == (-1.0, -2.0)
    assert found.origin.usage.completion_tokens == 4
    assert b'"stream":true' in server.asked[0]["body"]


def test_an_error_survives_being_sent_between_processes():
    given = TriwireError("m", code="c", status=422, param="p", request_id="r")
    found = pickle.loads(pickle.dumps(given))
    assert vars(found) == vars(given)
    assert str(found) == "m"


def test_the_version_is_that_of_the_project():
    project = Path(__file__).parent.parent.parent / "pyproject.toml"
    told = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    assert triwire.__version__ == told

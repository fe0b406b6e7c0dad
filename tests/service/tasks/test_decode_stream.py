"""Decode as server-sent events, over a real socket."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.errors import DeadlineExceeded, NonFiniteOutput
from service.tasks import decode
from service.tasks.decode import TOKENS_PER_PART
from tests.service import tiny
from tests.service.fakes import PATIENCE_S, read_events, wait_until
from tests.service.numbers import require_same
from tests.service.tiny import LETTERS, SOUNDS_LEN, WORD_LEN

PATH = "/v1/decode"
# Sums over padding differ in the order of additions and in nothing else.
ATOL = 1e-4
GENERATOR = np.random.default_rng(1)
WORDS = [
    "".join(GENERATOR.choice(LETTERS.symbols, GENERATOR.integers(1, WORD_LEN + 1)))
    for _ in range(12)
]


@pytest.fixture(scope="module")
def long_word(pairs):
    """A word whose target takes more than two parts."""
    results = pairs.ask(inputs=WORDS)["results"]
    lengths = {word: len(result["tokens"]) for word, result in zip(WORDS, results, strict=True)}
    return next(word for word, length in lengths.items() if length > 2 * TOKENS_PER_PART)


class Tap:
    """Stands in front of an engine: notes what is run, and does something at the second part."""

    def __init__(self, run, act):
        self.run, self.act = run, act
        self.names = []

    def __call__(self, name, rows):
        self.names.append(name)
        return (self.act(rows) if self.names.count("go on") == 2 else None) or self.run(name, rows)


def test_the_shapes_of_a_state_are_found_once_and_not_for_every_part():
    (go_on,) = [program for program in decode.programs(tiny.pairs()) if program.name == "go on"]
    assert go_on.arrays(WORD_LEN) is go_on.arrays(WORD_LEN)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_new_tokens": 3},
        {"max_new_tokens": TOKENS_PER_PART},
        {"attention": True},
        {"attention": {"heads": "mean", "encoding": "float"}, "max_new_tokens": 7},
    ],
    ids=str,
)
def test_every_token_is_an_event_in_its_order_and_the_whole_answer_is_the_last(pairs, options):
    for word in WORDS:
        *tokens, answer = pairs.stream(inputs=word, **options)
        require_same(answer, pairs.ask(inputs=word, **options), ATOL)
        (result,) = answer["results"]
        assert tokens == [
            {"index": 0, "position": position} | token
            for position, token in enumerate(result["tokens"])
        ]


def test_of_several_inputs_every_event_says_which_it_is_of(pairs):
    *tokens, answer = pairs.stream(inputs=WORDS, attention=True)
    require_same(answer, pairs.ask(inputs=WORDS, attention=True), ATOL)
    for index, result in enumerate(answer["results"]):
        own = [event for event in tokens if event["index"] == index]
        assert [event["position"] for event in own] == list(range(len(result["tokens"])))
        assert [event["token"] for event in own] == [token["token"] for token in result["tokens"]]
    assert len(tokens) == answer["usage"]["output_tokens"]
    # Inputs take turns: nobody waits for the first to be whole.
    firsts = [index for index, event in enumerate(tokens) if event["position"] == 0]
    assert max(firsts) < min(
        index for index, event in enumerate(tokens) if event["position"] == TOKENS_PER_PART
    )


def test_a_stream_is_of_the_type_that_browsers_read_and_nobody_keeps(pairs):
    answer = pairs.client.post(PATH, json={"inputs": WORDS[0], "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    assert "content-length" not in answer.headers
    assert read_events(answer.text)[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"inputs": []}, 422, "inputs"),
        ({"inputs": "xyz"}, 422, "inputs"),
        ({"inputs": "abcdeab"}, 422, "inputs"),
        ({"inputs": "abc", "num_beams": 2}, 422, "num_beams"),
        ({"inputs": "abc", "attention": {"layers": [9]}}, 422, "attention.layers"),
        ({"inputs": "abc", "model": "nothing"}, 404, "model"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_request_is_told_as_ever(pairs, body, status, param):
    answer = pairs.client.post(PATH, json=body | {"stream": True})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NonFiniteOutput("go on: log_probs holds NaN, says the secret log"), "non_finite_output"),
        (DeadlineExceeded("the answer was not ready in time"), "deadline_exceeded"),
        (RuntimeError("the secret of the parameters"), "internal_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_in_the_middle_is_told_as_the_last_event(
    pairs, long_word, monkeypatch, caplog, error, code
):
    def fail(_):
        raise error

    monkeypatch.setattr(pairs.engine, "run", Tap(pairs.engine.run, fail))
    headers = {"X-Request-Id": "my-own-id"}
    body = {"inputs": long_word, "stream": True}
    answer = pairs.client.post(PATH, json=body, headers=headers)
    assert answer.status_code == 200
    *tokens, last = map(orjson.loads, read_events(answer.text))
    assert [event["position"] for event in tokens] == list(range(TOKENS_PER_PART))
    assert list(last) == ["error"]
    assert list(last["error"]) == ["message", "type", "param", "code", "request_id"]
    assert (last["error"]["code"], last["error"]["request_id"]) == (code, "my-own-id")
    assert "secret" not in answer.text
    if code != "deadline_exceeded":
        assert "my-own-id" in caplog.text
        assert "secret" in caplog.text
    monkeypatch.undo()
    assert pairs.stream(inputs=long_word)


def test_tokens_come_before_the_rest_is_made_and_who_leaves_stops_the_work(
    pairs, long_word, monkeypatch
):
    entered, opened = threading.Event(), threading.Event()

    def wait(_):
        entered.set()
        assert opened.wait(PATIENCE_S)

    tap = Tap(pairs.engine.run, wait)
    monkeypatch.setattr(pairs.engine, "run", tap)
    lifecycle = pairs.app.state.lifecycle
    body = {"inputs": long_word, "stream": True, "attention": True}
    try:
        with pairs.client.stream("POST", PATH, json=body) as answer:
            # Kept, because an iterator that is dropped closes the connection.
            lines = answer.iter_lines()
            assert orjson.loads(next(lines).removeprefix("data: "))["position"] == 0
            assert entered.wait(PATIENCE_S)
            assert lifecycle.num_requests == 1
        wait_until(lambda: lifecycle.num_requests == 0)
    finally:
        opened.set()
    assert pairs.ask(inputs=long_word)
    assert tap.names == ["begin", "go on", "go on", "decode"]


def test_streams_and_plain_requests_at_once_each_get_their_own(pairs):
    compilations = pairs.app.state.compilations
    before = compilations.total, compilations.after_ready
    kinds = ({"stream": True}, {}, {"num_beams": 3}, {"stream": True, "attention": True})
    asked = [
        {"inputs": WORDS[start : start + 1 + start % 3]} | kinds[start % len(kinds)]
        for start in range(len(WORDS))
    ] * 3

    def answer(body):
        if body.get("stream"):
            *tokens, answer = pairs.stream(**body)
            assert len(tokens) == answer["usage"]["output_tokens"]
            return answer
        return pairs.ask(**body)

    alone = [answer(body) for body in asked[: len(WORDS)]] * 3
    with ThreadPoolExecutor(8) as clients:
        together = list(clients.map(answer, asked))
    for one, other in zip(together, alone, strict=True):
        require_same(one, other, ATOL)
    assert (compilations.total, compilations.after_ready) == before, "compiled while serving"


def test_what_a_stream_has_read_and_written_is_counted_like_that_of_an_answer(pairs):
    def counted():
        families = text_string_to_metric_families(pairs.client.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        return {
            sample.labels["direction"]: sample.value
            for sample in samples
            if sample.name == "triwire_tokens_total" and sample.labels["task"] == "decode"
        }

    before = counted()
    usage = pairs.stream(inputs=WORDS)[-1]["usage"]
    # Counted once the exchange is over, which is a moment after its last byte has come.
    wait_until(lambda: counted() != before)
    after = counted()
    assert after["input"] - before["input"] == usage["input_tokens"]
    assert after["output"] - before["output"] == usage["output_tokens"]
    assert usage["output_tokens"] <= len(WORDS) * SOUNDS_LEN

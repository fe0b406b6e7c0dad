"""Completions as server-sent events, over a real socket."""

import threading
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.errors import DeadlineExceeded, NonFiniteOutput, Overloaded
from service.tasks.continuation import TOKENS_PER_PART
from tests.service.fakes import PATIENCE_S, read_events, wait_until
from tests.service.numbers import require_same
from tests.service.tiny import WINDOW

PATH = "/v1/completions"
# Sums over padding differ in the order of additions and in nothing else.
ATOL = 1e-4
PROMPTS = ["the time", "", "x" * (WINDOW - 1), "a"]


class Tap:
    """Stands in front of an engine: notes what is run, and does something at the second part."""

    def __init__(self, run, act):
        self.run, self.act = run, act
        self.names = []

    def __call__(self, name, rows):
        self.names.append(name)
        return (self.act(rows) if self.names.count("continue") == 2 else None) or self.run(
            name, rows
        )


@pytest.fixture
def ask(live_service):
    return lambda **body: live_service.ask(PATH, **body)


@pytest.fixture
def stream(live_service):
    return lambda **body: live_service.stream(PATH, **body)


def gathered(chunks, index):
    """One choice of a stream in the form that the whole answer gives it."""
    *parts, end = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    *parts, end = [part for part in (*parts, end) if part["index"] == index]
    assert (end["text"], end["logprobs"]) == ("", None)
    assert all(part["finish_reason"] is None for part in parts)
    logprobs = [part["logprobs"] for part in parts]
    if any(logprobs):
        logprobs = {
            name: [item for told in logprobs for item in told[name]] for name in logprobs[0]
        }
    else:
        logprobs = None
    return {
        "text": "".join(part["text"] for part in parts),
        "index": index,
        "logprobs": logprobs,
        "finish_reason": end["finish_reason"],
        "normalized": end["normalized"],
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_tokens": 1},
        {"max_tokens": 3 * WINDOW, "logprobs": 2},
        {"max_tokens": TOKENS_PER_PART, "temperature": 0},
        {"max_tokens": 30, "top_p": 0.7, "temperature": 1.5},
        {"max_tokens": 30, "stop": ["e", "th"], "logprobs": 0},
        {"max_tokens": 30, "n": 3, "stop": "a"},
        {"echo": True, "n": 2, "max_tokens": 5},
    ],
    ids=str,
)
def test_a_stream_tells_what_the_whole_answer_would_token_by_token(ask, stream, options):
    whole = ask(prompt=PROMPTS, seed=5, **options)
    chunks = stream(prompt=PROMPTS, seed=5, **options)
    for choice in whole["choices"]:
        require_same(gathered(chunks, choice["index"]), choice, ATOL)
    for chunk in chunks:
        assert list(chunk) == ["id", "object", "created", "model", "choices"]
        assert chunk["object"] == "text_completion"
        assert len(chunk["choices"]) == 1
    assert len({chunk["id"] for chunk in chunks}) == 1
    texts = [c["choices"][0]["text"] for c in chunks if c["choices"][0]["finish_reason"] is None]
    if not options.get("echo"):
        assert len(texts) == whole["usage"]["completion_tokens"]
        assert all(len(text) == 1 or text == "<unk>" for text in texts)


def test_choices_take_turns_rather_than_wait_for_the_first_to_be_whole(stream):
    chunks = stream(prompt=["a", "b"], n=2, max_tokens=3 * TOKENS_PER_PART, seed=1)
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert set(order) == {0, 1, 2, 3}
    assert max(map(order.index, range(4))) < len(order) - 1 - order[::-1].index(0)


def test_a_stop_is_never_seen_to_begin(ask, stream):
    """At no moment has anything been read that belongs to the stop that came."""
    text = ask(prompt="a", max_tokens=60, seed=5)["choices"][0]["text"]
    for start in range(2, 50, 3):
        for size in (1, 2, 3, 7, 10):
            stop = text[start : start + size]
            chunks = stream(prompt="a", max_tokens=60, seed=5, stop=[stop, "never"])
            (choice,) = ask(prompt="a", max_tokens=60, seed=5, stop=[stop, "never"])["choices"]
            assert choice["text"] == text[: text.index(stop)]
            assert choice["finish_reason"] == "stop"
            require_same(gathered(chunks, 0), choice, ATOL)


def test_a_stop_that_only_begins_holds_nothing_back_in_the_end(ask, stream):
    text = ask(prompt="a", max_tokens=20, seed=5)["choices"][0]["text"]
    chunks = stream(prompt="a", max_tokens=20, seed=5, stop=[text[-6:] + "#", text[3:9] + "#"])
    assert gathered(chunks, 0)["text"] == text
    assert gathered(chunks, 0)["finish_reason"] == "length"


def test_of_overlapping_stops_the_one_that_is_complete_first_counts_in_both(ask, stream):
    text = ask(prompt="a", max_tokens=40, seed=5)["choices"][0]["text"]
    at = next(i for i in range(4, 30) if text.index(text[i + 2]) == i + 2)
    stops = [text[at : at + 8], text[at + 2]]
    (choice,) = ask(prompt="a", max_tokens=40, seed=5, stop=stops)["choices"]
    assert choice["text"] == text[: at + 2]
    assert (
        gathered(stream(prompt="a", max_tokens=40, seed=5, stop=stops), 0)["text"] == text[: at + 2]
    )


def test_usage_comes_in_a_last_chunk_where_it_is_asked_for(ask, stream):
    body = {"prompt": ["the", "time"], "n": 2, "max_tokens": 6, "seed": 3, "stop": "e"}
    *chunks, last = stream(**body, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == ask(**body)["usage"]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    for options in (None, {}, {"include_usage": False, "include_obfuscation": False}):
        assert all("usage" not in c for c in stream(**body, stream_options=options))


def test_a_stream_is_of_the_type_that_browsers_read_and_nobody_keeps(live_service):
    answer = live_service.client.post(PATH, json={"prompt": "a", "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("the queue is full"), 429), (NonFiniteOutput("secret"), 500)]
)
def test_what_goes_wrong_before_the_first_token_has_a_status(
    live_service, monkeypatch, error, status
):
    def fail(name, rows):
        raise error

    monkeypatch.setattr(live_service.engine("causal-lm"), "run", fail)
    body = {"prompt": "a", "stream": True, "echo": True}
    answer = live_service.client.post(PATH, json=body)
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (status == 429)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            NonFiniteOutput("continue: log_probs holds NaN, says the secret log"),
            "non_finite_output",
        ),
        (DeadlineExceeded("the answer was not ready in time"), "deadline_exceeded"),
        (RuntimeError("the secret of the parameters"), "internal_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_in_the_middle_is_told_as_the_last_event(
    live_service, monkeypatch, error, code
):
    def fail(_):
        raise error

    engine = live_service.engine("causal-lm")
    monkeypatch.setattr(engine, "run", Tap(engine.run, fail))
    answer = live_service.client.post(PATH, json={"prompt": "a", "stream": True})
    assert answer.status_code == 200
    *chunks, last = map(orjson.loads, read_events(answer.text))
    assert len(chunks) == TOKENS_PER_PART
    assert list(last) == ["error"]
    assert list(last["error"]) == ["message", "type", "param", "code", "request_id"]
    assert last["error"]["code"] == code
    assert "secret" not in answer.text


def test_tokens_come_before_the_rest_is_made_and_who_leaves_stops_the_work(
    live_service, monkeypatch
):
    entered, opened = threading.Event(), threading.Event()

    def wait(_):
        entered.set()
        assert opened.wait(PATIENCE_S)

    engine = live_service.engine("causal-lm")
    tap = Tap(engine.run, wait)
    monkeypatch.setattr(engine, "run", tap)
    lifecycle = live_service.app.state.lifecycle
    body = {"prompt": "a", "stream": True, "max_tokens": 100}
    try:
        with live_service.client.stream("POST", PATH, json=body) as answer:
            # Kept, because an iterator that is dropped closes the connection.
            lines = answer.iter_lines()
            assert orjson.loads(next(lines).removeprefix("data: "))["choices"]
            assert entered.wait(PATIENCE_S)
            assert lifecycle.num_requests == 1
        wait_until(lambda: lifecycle.num_requests == 0)
    finally:
        opened.set()
    assert live_service.ask(PATH, prompt="a", max_tokens=1)
    assert tap.names == ["prompt", "continue", "continue", "generate"]


def test_streams_and_plain_requests_at_once_each_get_their_own_and_nothing_is_compiled(
    live_service, ask, stream
):
    compilations = live_service.app.state.compilations
    before = compilations.total, compilations.after_ready
    asked = [
        {"prompt": PROMPTS[: 1 + seed % 4], "seed": seed, "max_tokens": 20 + seed}
        for seed in range(8)
    ]
    alone = [ask(**body)["choices"] for body in asked]

    def answer(index):
        if index % 3 == 0:
            return ask(**asked[index])["choices"]
        chunks = stream(**asked[index])
        return [gathered(chunks, choice["index"]) for choice in alone[index]]

    with ThreadPoolExecutor(8) as clients:
        for one, other in zip(clients.map(answer, range(8)), alone, strict=True):
            require_same(one, other, ATOL)
    assert (compilations.total, compilations.after_ready) == before, "compiled while serving"


def test_what_a_stream_has_read_and_written_is_counted_like_that_of_an_answer(live_service, stream):
    def samples():
        families = text_string_to_metric_families(live_service.client.get("/metrics").text)
        return [sample for family in families for sample in family.samples]

    def counted():
        return {
            sample.labels["direction"]: sample.value
            for sample in samples()
            if sample.name == "triwire_tokens_total" and sample.labels["task"] == "complete"
        }

    def num_under_way():
        """All but the request that asks."""
        return sum(s.value for s in samples() if s.name == "triwire_requests_in_progress") - 1

    # An exchange is over, and counted, a moment after its last byte has come.
    wait_until(lambda: num_under_way() == 0)
    before = counted()
    stream(prompt="time", n=2, max_tokens=9)
    wait_until(lambda: num_under_way() == 0)
    after = counted()
    assert after["input"] - before.get("input", 0) == 4
    assert after["output"] - before.get("output", 0) == 18

import time

import numpy as np
import pytest

from models.vocabulary import BOS
from service.schemas import CompletionRequest
from tests.service.tiny import CAUSAL, WINDOW

PATH = "/v1/completions"
ATOL = 1e-5


@pytest.fixture(scope="module")
def next_log_probs(call):
    """The model's log-probabilities for the symbol after ``<bos>`` and some token ids."""

    def next_log_probs(ids):
        tokens = np.zeros((1, WINDOW), np.int32)
        tokens[0, : len(ids) + 1] = [CAUSAL.special_id(BOS), *ids]
        logits = call("causal-lm", "__call__", tokens, np.array([len(ids) + 1], np.int32))
        last = logits[0, len(ids)].astype(np.float64)
        return last - np.log(np.exp(last - last.max()).sum()) - last.max()

    return next_log_probs


def token_ids(text):
    return [CAUSAL.symbols.index(c) for c in text]


def symbols(ids):
    return [CAUSAL.symbols[i] for i in ids]


def greedy(next_log_probs, prompt, count):
    """The likeliest continuation, symbol by symbol; a full window goes on from its last half."""
    ids, start, rows = token_ids(prompt), 0, []
    for _ in range(count):
        if len(ids) - start >= WINDOW:
            start = len(ids) - WINDOW // 2
        rows.append(next_log_probs(ids[start:]))
        ids.append(int(rows[-1].argmax()))
    return ids[len(prompt) :], np.array(rows)


def texts(answer):
    return [choice["text"] for choice in answer["choices"]]


def test_the_answer_has_the_shape_of_the_openai_schema(ask):
    before = int(time.time())
    answer = ask(PATH, prompt="The Time", max_tokens=4, logprobs=2)
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert before <= answer["created"] <= time.time()
    assert answer["model"] == "causal-lm"
    assert answer["usage"] == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
    (choice,) = answer["choices"]
    assert list(choice) == ["text", "index", "logprobs", "finish_reason", "normalized"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["normalized"] == "the time"
    assert list(choice["logprobs"]) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    assert ask(PATH, prompt="a")["choices"][0]["logprobs"] is None


def test_every_answer_has_an_id_of_its_own(ask):
    assert len({ask(PATH, prompt="a", max_tokens=1)["id"] for _ in range(3)}) == 3


@pytest.mark.parametrize("prompt", ["", "a", "the time trav", "x" * (WINDOW - 1)])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_at_temperature_zero_the_likeliest_symbol_follows_over_any_length(
    ask, next_log_probs, prompt, count
):
    answer = ask(PATH, prompt=prompt, max_tokens=count, temperature=0, logprobs=3)
    ids, rows = greedy(next_log_probs, prompt, count)
    (choice,) = answer["choices"]
    assert choice["text"] == "".join(symbols(ids))
    assert choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == symbols(ids)
    expected = [row[i] for row, i in zip(rows, ids, strict=True)]
    np.testing.assert_allclose(logprobs["token_logprobs"], expected, atol=ATOL)
    for row, top in zip(rows, logprobs["top_logprobs"], strict=True):
        best = symbols(np.argsort(-row)[:3])
        assert list(top) == best
        np.testing.assert_allclose(list(top.values()), np.sort(row)[::-1][:3], atol=ATOL)
    lengths = [len(symbol) for symbol in symbols(ids)]
    assert logprobs["text_offset"] == [sum(lengths[:i]) for i in range(count)]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
    assert answer["usage"] == usage | {"total_tokens": len(prompt) + count}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-7},
        {"temperature": 2e-38},
        {"temperature": 1e-300},
        {"top_p": 1e-9},
        {"top_p": 1e-300},
    ],
    ids=str,
)
def test_the_smallest_temperatures_and_masses_take_the_likeliest_symbol_too(ask, options):
    expected = ask(PATH, prompt="the ", temperature=0)
    assert texts(ask(PATH, prompt="the ", **options)) == texts(expected)


def test_the_same_seed_draws_the_same_completion_and_others_differ(ask):
    def draw(**options):
        return texts(ask(PATH, prompt="a", max_tokens=30, **options))[0]

    assert draw(seed=7) == draw(seed=7)
    assert draw(seed=0) == draw(seed=0)
    assert len({draw(seed=seed) for seed in range(5)}) == 5
    assert draw() != draw()
    assert draw(seed=2**63 - 1) == draw(seed=2**63 - 1)


def test_a_seeded_completion_does_not_depend_on_what_shares_its_batch(ask):
    alone = texts(ask(PATH, prompt="time", max_tokens=20, seed=3))[0]
    together = texts(ask(PATH, prompt=["a", "time", "x", ""], max_tokens=20, seed=3))
    assert together[1] == alone


def test_a_longer_completion_begins_like_a_shorter_one_within_a_window(ask):
    long = texts(ask(PATH, prompt="a", max_tokens=10, seed=3))[0]
    short = texts(ask(PATH, prompt="a", max_tokens=4, seed=3, logprobs=0))[0]
    assert long.startswith(short)


def test_every_window_of_every_choice_is_drawn_with_a_seed_of_its_own(client, ask, monkeypatch):
    engine = client.app.state.context.registry.find("causal-lm").engine
    run, seeds = engine.run, []

    def note(name, rows):
        seeds.extend(int(row["seed"]) for row in rows)
        return run(name, rows)

    monkeypatch.setattr(engine, "run", note)
    ask(PATH, prompt="the", max_tokens=40, n=3, seed=1)
    assert len(seeds) > 3
    assert len(set(seeds)) == len(seeds)


def test_symbols_are_drawn_with_the_models_probabilities(ask, next_log_probs):
    counts = dict.fromkeys(CAUSAL.symbols, 0)
    for seed in range(50):
        for text in texts(ask(PATH, prompt="th", max_tokens=1, n=16, seed=seed)):
            counts[text] += 1
    expected = np.exp(next_log_probs(token_ids("th"))) * 800
    found = np.array([counts[symbol] for symbol in CAUSAL.symbols])
    # Chi-squared over 27 degrees of freedom exceeds 70 once in 100,000 times; seeds are fixed.
    assert ((found - expected) ** 2 / expected).sum() < 70


def test_a_nucleus_holds_the_likeliest_symbols_only(ask, next_log_probs):
    probs = np.exp(next_log_probs(token_ids("th")))
    order = np.argsort(-probs)
    size = int((np.cumsum(probs[order]) < 0.5).sum()) + 1
    allowed = set(symbols(order[:size]))
    assert 1 < size < len(CAUSAL.symbols)
    drawn = set()
    for seed in range(10):
        drawn |= set(texts(ask(PATH, prompt="th", max_tokens=1, n=16, seed=seed, top_p=0.5)))
    assert drawn == allowed


def test_n_gives_as_many_different_choices_for_every_prompt_in_order(ask):
    answer = ask(PATH, prompt=["a", "b"], n=3, max_tokens=20, seed=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["normalized"] for choice in answer["choices"]] == ["a"] * 3 + ["b"] * 3
    assert len(set(texts(answer))) == 6
    assert texts(answer)[:3] == texts(ask(PATH, prompt="a", n=3, max_tokens=20, seed=1))
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 120, "total_tokens": 122}


def test_a_stop_ends_the_completion_before_it(ask):
    whole = texts(ask(PATH, prompt="a", max_tokens=40, seed=5))[0]
    stop = whole[20:22]
    at = whole.index(stop)
    for given in (stop, [stop], ["#", stop], ["never", stop]):
        answer = ask(PATH, prompt="a", max_tokens=40, seed=5, stop=given, logprobs=0)
        (choice,) = answer["choices"]
        assert choice["text"] == whole[:at]
        assert choice["finish_reason"] == "stop"
        assert "".join(choice["logprobs"]["tokens"]) == whole[:at]
        assert answer["usage"]["completion_tokens"] == len(choice["logprobs"]["tokens"])


def test_the_earliest_of_several_stops_counts(ask):
    whole = texts(ask(PATH, prompt="a", max_tokens=40, seed=5))[0]
    stops = [whole[30:33], whole[10:13], whole[18:21], "#"]
    earliest = min(whole.index(stop) for stop in stops[:3])
    answer = ask(PATH, prompt="a", max_tokens=40, seed=5, stop=stops)
    assert texts(answer) == [whole[:earliest]]


@pytest.mark.parametrize("stop", [None, [], "#", ["0", "1", "2", "3"]])
def test_a_stop_that_does_not_come_changes_nothing(ask, stop):
    plain = ask(PATH, prompt="a", max_tokens=20, seed=5)
    stopped = ask(PATH, prompt="a", max_tokens=20, seed=5, stop=stop)
    assert stopped["choices"] == plain["choices"]


def test_echo_puts_the_prompt_as_it_was_read_before_the_completion(ask):
    plain = texts(ask(PATH, prompt="The Time!", max_tokens=9, seed=5))
    echoed = texts(ask(PATH, prompt="The Time!", max_tokens=9, seed=5, echo=True))
    assert echoed == ["the time " + plain[0]]


def test_one_prompt_in_a_list_is_answered_like_the_prompt_itself(ask):
    answers = [ask(PATH, prompt=prompt, seed=5) for prompt in ("time", ["time"])]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"] == answers[1]["usage"]


def test_no_prompt_is_an_empty_one(ask):
    expected = ask(PATH, prompt="", seed=5)["choices"]
    assert ask(PATH, seed=5)["choices"] == expected
    assert ask(PATH, prompt=None, seed=5)["choices"] == expected


def test_many_prompts_are_answered_like_each_by_itself(ask):
    prompts = ["the time traveller"[:length] for length in range(15)]
    together = ask(PATH, prompt=prompts, max_tokens=24, temperature=0, logprobs=1)
    for prompt, choice in zip(prompts, together["choices"], strict=True):
        alone = ask(PATH, prompt=prompt, max_tokens=24, temperature=0, logprobs=1)["choices"][0]
        assert alone["text"] == choice["text"]
        np.testing.assert_allclose(
            alone["logprobs"]["token_logprobs"], choice["logprobs"]["token_logprobs"], atol=ATOL
        )


def test_the_user_field_is_taken_and_not_used(ask):
    assert (
        ask(PATH, prompt="a", seed=1, user="someone")["choices"]
        == ask(PATH, prompt="a", seed=1)["choices"]
    )


@pytest.mark.parametrize("prompt", [token_ids("the time"), [token_ids("the time")], [0, 1, 0]])
def test_token_ids_are_continued_like_the_text_that_they_are(ask, prompt):
    ids = prompt[0] if isinstance(prompt[0], list) else prompt
    answer = ask(PATH, prompt=prompt, max_tokens=12, seed=4)
    assert answer["choices"][0]["normalized"] == "".join(symbols(ids))
    assert answer["usage"]["prompt_tokens"] == len(ids)
    if 0 not in ids:
        assert answer["choices"] == ask(PATH, prompt="the time", max_tokens=12, seed=4)["choices"]


def test_lists_of_token_ids_are_continued_like_texts_in_their_order(ask):
    texts = ["the time", "", "a"]
    by_ids = ask(PATH, prompt=[token_ids(text) for text in texts], max_tokens=12, seed=4, n=2)
    assert by_ids["choices"] == ask(PATH, prompt=texts, max_tokens=12, seed=4, n=2)["choices"]


@pytest.mark.parametrize("prompt", ["the time trav", "a", ""])
@pytest.mark.parametrize("count", [0, 5, 30])
def test_echo_tells_what_the_model_made_of_the_prompt_from_its_first_symbol_on(
    ask, next_log_probs, prompt, count
):
    body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 2}
    (choice,) = ask(PATH, **body, echo=True)["choices"]
    (plain,) = ask(PATH, **body)["choices"]
    assert choice["text"] == prompt + plain["text"]
    logprobs, own = choice["logprobs"], plain["logprobs"]
    ids, size = token_ids(prompt), len(prompt)
    assert logprobs["tokens"] == symbols(ids) + own["tokens"]
    for name in ("token_logprobs", "top_logprobs"):
        assert logprobs[name][size:] == own[name]
    assert logprobs["text_offset"] == [*range(size), *(size + at for at in own["text_offset"])]
    for position, told in enumerate(logprobs["token_logprobs"][:size]):
        expected = next_log_probs(ids[:position])
        assert told == pytest.approx(expected[ids[position]], abs=ATOL)
        top = logprobs["top_logprobs"][position]
        best = symbols(np.argsort(-expected)[:2])
        own_symbol = prompt[position]
        assert list(top) == best + [own_symbol] * (own_symbol not in best)
        assert top[own_symbol] == told


def test_nothing_at_all_may_be_asked_for(ask):
    answer = ask(PATH, prompt="time", max_tokens=0, stop="e")
    assert texts(answer) == [""]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4}


def test_the_token_that_was_drawn_is_told_beside_the_likeliest(ask):
    answer = ask(PATH, prompt="a", max_tokens=40, seed=1, temperature=2, logprobs=1)
    logprobs = answer["choices"][0]["logprobs"]
    tops = logprobs["top_logprobs"]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True
    ):
        assert top[token] == logprob == min(top.values())
    assert {len(top) for top in tops} == {1, 2}
    (choice,) = ask(PATH, prompt="a", max_tokens=3, logprobs=0)["choices"]
    assert [list(top) for top in choice["logprobs"]["top_logprobs"]] == [
        [token] for token in choice["logprobs"]["tokens"]
    ]


@pytest.mark.parametrize("options", [{}, {"stop": ["e", "a"]}], ids=str)
def test_the_best_of_several_are_the_likeliest_by_token(ask, options):
    body = {"prompt": ["the", "a"], "max_tokens": 12, "seed": 2, "logprobs": 0} | options
    drawn = ask(PATH, **body, n=6)["choices"]
    answer = ask(PATH, **body, n=2, best_of=6)
    for index in range(2):
        group = drawn[6 * index : 6 * index + 6]
        if not options:
            group.sort(key=lambda one: -np.mean(one["logprobs"]["token_logprobs"]))
            expected = [one["text"] for one in group[:2]]
            assert texts(answer)[2 * index : 2 * index + 2] == expected
        assert set(texts(answer)[2 * index : 2 * index + 2]) <= {one["text"] for one in group}
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    total = sum(len(one["logprobs"]["tokens"]) for one in drawn)
    assert answer["usage"]["completion_tokens"] == total


@pytest.mark.parametrize("best_of", [None, 0, 3])
def test_the_best_of_as_many_as_are_asked_for_are_all_of_them(ask, best_of):
    body = {"prompt": "a", "n": 3, "seed": 5}
    assert ask(PATH, **body, best_of=best_of)["choices"] == ask(PATH, **body)["choices"]


def test_null_and_what_says_that_a_feature_is_not_wanted_change_nothing(ask):
    expected = ask(PATH, prompt="a", seed=5)["choices"]
    schema = CompletionRequest.model_fields
    for name in schema.keys() - {"prompt", "seed"}:
        assert ask(PATH, prompt="a", seed=5, **{name: None})["choices"] == expected, name
    off = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "suffix": ""}
    assert ask(PATH, prompt="a", seed=5, **off)["choices"] == expected


def test_any_integer_of_64_bits_is_a_seed(ask):
    seeds = [-1, -(2**63), 2**63 - 1, 0, 1]
    drawn = [texts(ask(PATH, prompt="a", max_tokens=30, seed=seed))[0] for seed in seeds]
    assert len(set(drawn)) == len(seeds)
    assert texts(ask(PATH, prompt="a", max_tokens=30, seed=-1))[0] == drawn[0]


def test_of_overlapping_stops_the_one_that_is_complete_first_counts(ask):
    whole = texts(ask(PATH, prompt="a", max_tokens=40, seed=5))[0]
    at = next(i for i in range(4, 30) if whole.index(whole[i + 2]) == i + 2)
    answer = ask(PATH, prompt="a", max_tokens=40, seed=5, stop=[whole[at : at + 8], whole[at + 2]])
    assert texts(answer) == [whole[: at + 2]]

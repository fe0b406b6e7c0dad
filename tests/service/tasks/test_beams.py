"""Beam search over HTTP, with a model of pairs: other symbols out than in, and of any length."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.beam_search import beam_search
from models.decoding import cross_attention, decode
from service.schemas import MAX_BEAMS
from tests.service.fakes import PATIENCE_S, wait_until
from tests.service.numbers import require_same
from tests.service.tiny import LETTERS, SOUNDS, SOUNDS_LEN, WORD_LEN

PATH = "/v1/decode"
# Sums over padding differ in the order of additions and in nothing else.
ATOL = 1e-4
GENERATOR = np.random.default_rng(0)
WORDS = [
    "".join(GENERATOR.choice(LETTERS.symbols, GENERATOR.integers(1, WORD_LEN + 1)))
    for _ in range(24)
]


@pytest.fixture(scope="module")
def asked_of_the_model(pairs):
    """A function of the model, called with one word without the service."""
    compiled = {
        "decode": jax.jit(decode),
        "search": jax.jit(partial(beam_search, max_beams=MAX_BEAMS)),
        "read": jax.jit(lambda model, *arrays: model(*arrays)[0]),
        "look": jax.jit(cross_attention),
    }

    def ask(name, word, *values):
        source = np.zeros((1, WORD_LEN), np.int32)
        source[0, : len(word)] = LETTERS.encode(word)
        arrays = [np.array([value], np.int32) for value in (len(word), *values)]
        return jax.tree.map(
            lambda a: np.asarray(a)[0], compiled[name](pairs.model, source, *arrays)
        )

    return ask


def padded(ids):
    return [*ids, *[0] * (SOUNDS_LEN - len(ids))]


@pytest.mark.parametrize("num_beams", [2, 5, MAX_BEAMS])
def test_beams_are_those_of_the_search_best_first_and_the_output_is_the_first(
    pairs, asked_of_the_model, num_beams
):
    answer = pairs.ask(inputs=WORDS, num_beams=num_beams)
    for word, result in zip(WORDS[:8], answer["results"][:8], strict=True):
        found = asked_of_the_model("search", word, SOUNDS_LEN, num_beams)
        assert list(result) == ["output", "finish_reason", "tokens", "beams"]
        assert all(list(beam) == ["output", "logprob"] for beam in result["beams"])
        there = np.flatnonzero(found.scores > -np.inf)
        targets = [SOUNDS.decode(found.tokens[k, : found.lengths[k]]) for k in there]
        assert [beam["output"] for beam in result["beams"]] == targets
        logprobs = [beam["logprob"] for beam in result["beams"]]
        np.testing.assert_allclose(logprobs, found.scores[there], atol=ATOL)
        assert logprobs == sorted(logprobs, reverse=True)
        assert 1 <= len(targets) <= num_beams
        assert len(set(targets)) == len(targets)
        assert result["output"] == targets[0]
        assert result["finish_reason"] == ("stop" if found.has_ended[0] else "length")


def test_a_logprob_is_that_of_the_whole_target_its_end_included(pairs, asked_of_the_model):
    results = pairs.ask(inputs=WORDS, num_beams=4)["results"]
    assert {result["finish_reason"] for result in results} == {"stop", "length"}
    bos, eos = pairs.model.config.bos_id, pairs.model.config.eos_id
    for word, result in zip(WORDS, results, strict=True):
        ids = [SOUNDS.tokens.index(token["token"]) for token in result["tokens"]]
        logits = asked_of_the_model("read", word, padded([bos, *ids][:SOUNDS_LEN]), SOUNDS_LEN)
        log_probs = np.asarray(jax.nn.log_softmax(jnp.asarray(logits).at[:, bos].set(-jnp.inf)))
        wanted = ids + [eos] * (result["finish_reason"] == "stop")
        expected = log_probs[np.arange(len(wanted)), wanted]
        np.testing.assert_allclose(result["beams"][0]["logprob"], expected.sum(), atol=ATOL)
        told = [token["logprob"] for token in result["tokens"]]
        np.testing.assert_allclose(told, expected[: len(ids)], atol=ATOL)


def test_one_beam_is_greedy_decoding(pairs, asked_of_the_model):
    plain = pairs.ask(inputs=WORDS)
    assert pairs.ask(inputs=WORDS, num_beams=1) == plain
    for word, result in zip(WORDS[:8], plain["results"][:8], strict=True):
        assert "beams" not in result
        decoded = asked_of_the_model("decode", word, SOUNDS_LEN)
        ids = decoded.tokens[: decoded.lengths]
        assert result["output"] == SOUNDS.decode(ids)
        assert result["finish_reason"] == ("stop" if decoded.has_ended else "length")


def test_the_best_of_more_beams_is_at_least_as_probable_and_sometimes_more(pairs):
    def best(num_beams):
        results = pairs.ask(inputs=WORDS, num_beams=num_beams)["results"]
        return np.array([result["beams"][0]["logprob"] for result in results])

    two, eight = best(2), best(8)
    assert (eight >= two - ATOL).all()
    assert (eight > two + ATOL).any()


def test_a_target_is_named_symbol_by_symbol_and_may_be_longer_than_its_source(pairs):
    results = pairs.ask(inputs=WORDS)["results"]
    for result in results:
        tokens = [token["token"] for token in result["tokens"]]
        assert result["output"] == " ".join(tokens)
        assert set(tokens) <= set(SOUNDS.symbols)
    longer = [len(r["tokens"]) > len(word) for word, r in zip(WORDS, results, strict=True)]
    assert any(longer)


def test_an_output_stops_where_the_model_ended_it_and_not_where_a_limit_did(pairs):
    whole = pairs.ask(inputs=WORDS)["results"]
    assert {result["finish_reason"] for result in whole} == {"stop", "length"}
    for limit in (1, 3):
        cut = pairs.ask(inputs=WORDS, max_new_tokens=limit)["results"]
        for before, after in zip(whole, cut, strict=True):
            assert len(after["tokens"]) == min(limit, len(before["tokens"]))
            ended = before["finish_reason"] == "stop" and len(before["tokens"]) < limit
            assert after["finish_reason"] == ("stop" if ended else "length")


def test_requests_of_different_widths_and_limits_share_a_batch_and_get_their_own(
    pairs, monkeypatch
):
    asked = [
        {"inputs": WORDS[index], "num_beams": 2 + index, "max_new_tokens": 3 + index}
        for index in range(4)
    ]
    alone = [pairs.ask(**body) for body in asked]
    batches, entered, opened = [], threading.Event(), threading.Event()
    run = pairs.engine.run

    def held(name, rows):
        entered.set()
        assert opened.wait(PATIENCE_S)
        batches.append((name, len(rows)))
        return run(name, rows)

    monkeypatch.setattr(pairs.engine, "run", held)
    with ThreadPoolExecutor(len(asked) + 1) as threads:
        first = threads.submit(pairs.ask, inputs=WORDS[0])
        assert entered.wait(PATIENCE_S)
        others = [threads.submit(lambda body=body: pairs.ask(**body)) for body in asked]
        wait_until(lambda: pairs.app.state.context.batcher.num_rows == len(asked))
        opened.set()
        first.result()
        together = [other.result() for other in others]
    assert batches == [("decode", 1), ("search", len(asked))]
    for one, other in zip(together, alone, strict=True):
        require_same(one, other, ATOL)
    for body, answer in zip(asked, alone, strict=True):
        (result,) = answer["results"]
        assert len(result["beams"]) <= body["num_beams"]
        assert len(result["tokens"]) <= body["max_new_tokens"]
    assert len({len(answer["results"][0]["beams"]) for answer in alone}) > 1


def test_attention_is_that_of_the_best_beam_and_so_is_the_alignment(pairs, asked_of_the_model):
    results = pairs.ask(inputs=WORDS, num_beams=3, attention=True)["results"]
    for word, result in zip(WORDS[:6], results[:6], strict=True):
        names = [token["token"] for token in result["tokens"]]
        attention, alignment = result["attention"], result["alignment"]
        assert attention["source_tokens"] == list(word)
        assert attention["target_tokens"] == names
        assert attention["shape"] == [1, 2, len(names), len(word)]
        ids = [SOUNDS.tokens.index(name) for name in names]
        expected = asked_of_the_model("look", word, padded(ids), len(ids))
        expected = expected[:, :, : len(ids), : len(word)]
        np.testing.assert_allclose(attention["weights"], expected, atol=ATOL)
        mean = expected[-1].mean(axis=0)
        assert list(alignment) == ["source_positions", "weights"]
        assert alignment["source_positions"] == mean.argmax(axis=1).tolist()
        np.testing.assert_allclose(alignment["weights"], mean.max(axis=1), atol=ATOL)


@pytest.mark.parametrize("options", [{}, {"stream": True}], ids=str)
def test_a_target_that_ends_before_it_begins_is_an_empty_output_that_looks_nowhere(
    pairs, monkeypatch, options
):
    run = pairs.engine.run

    def ending(name, rows):
        outcomes = run(name, rows)
        if name == "attend":
            return outcomes
        return [
            outcome | {"lengths": np.array(0), "has_ended": np.array(True)} for outcome in outcomes
        ]

    monkeypatch.setattr(pairs.engine, "run", ending)
    asked = {"inputs": "abc", "attention": True}
    answer = pairs.stream(**asked)[0] if options else pairs.ask(**asked)
    (result,) = answer["results"]
    assert (result["output"], result["finish_reason"], result["tokens"]) == ("", "stop", [])
    assert result["attention"]["shape"] == [1, 2, 0, 3]
    assert result["attention"]["weights"] == [[[], []]]
    assert result["alignment"] == {"source_positions": [], "weights": []}


@pytest.fixture
def spoiled(pairs, monkeypatch):
    """A letter that the model makes nothing of that is a number."""
    ((pack, form),) = pairs.engine._forms.items()
    packed = form.rebuild(form.leaves)
    row = LETTERS.symbols.index("e")
    source = replace(packed.source, tokens=packed.source.tokens.at[row].set(jnp.nan))
    leaves = jax.tree.leaves(replace(packed, source=source))
    monkeypatch.setattr(pairs.engine, "_forms", {pack: form._replace(leaves=leaves)})
    return "e"


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"stream": True}], ids=str)
def test_what_is_no_number_is_a_fault_and_spoils_nothing_beside_it(pairs, spoiled, options):
    body = {"inputs": ["abcd", "ab" + spoiled]} | options
    with ThreadPoolExecutor(4) as threads:
        others = [threads.submit(pairs.ask, inputs="abcd", num_beams=2) for _ in range(3)]
        answer = pairs.client.post(PATH, json=body)
        assert all(other.result()["results"][0]["beams"] for other in others)
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "non_finite_output"


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"stream": True}], ids=str)
def test_a_symbol_that_sources_lack_is_named_even_where_targets_have_it(pairs, options):
    answer = pairs.client.post(PATH, json={"inputs": ["abc", "abK"]} | options)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["param"] == "inputs[1]"
    assert "'abcde', got 'K' (U+004B) at position 2" in error["message"]

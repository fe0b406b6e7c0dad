import base64
import threading
from dataclasses import replace

import numpy as np
import pytest

from models import decoding
from models.vocabulary import Vocabulary
from service.tasks.context import FEW_SYMBOLS
from service.tasks.decode import Job, Target, _result, align
from tests.service import tiny
from tests.service.fakes import fake_model
from tests.service.tiny import SOURCE_LEN, SOURCES

PATH = "/v1/decode"
ATOL = 1e-5
SOURCE = "abcdefghijkl"


@pytest.fixture(scope="module")
def decode(call):
    """What the model itself makes of some sources."""

    def decode(sources):
        lengths = np.full(len(sources), SOURCE_LEN, np.int32)
        return call("reversal", decoding.decode, encode(sources), lengths, lengths)

    return decode


@pytest.fixture(scope="module")
def look(call, decode):
    """Where the model itself looks while it decodes a source."""

    def look(source):
        decoded = decode([source])
        length = np.array([SOURCE_LEN], np.int32)
        arrays = (encode([source]), length, decoded.tokens, decoded.lengths)
        return call("reversal", decoding.cross_attention, *arrays)[0]

    return look


def encode(sources):
    return np.stack([SOURCES.encode(source) for source in sources])


def draw_sources(count, seed=0):
    drawn = np.random.default_rng(seed).choice(list(SOURCES.symbols), (count, SOURCE_LEN))
    return ["".join(row) for row in drawn]


def test_the_answer_has_the_shape_of_the_contract(ask):
    answer = ask(PATH, inputs=SOURCE)
    assert list(answer) == ["model", "version", "results", "usage"]
    assert (answer["model"], answer["version"]) == ("reversal", 1)
    assert answer["usage"] == {"input_tokens": 12, "output_tokens": 12}
    (result,) = answer["results"]
    assert list(result) == ["output", "finish_reason", "tokens"]
    assert [list(token) for token in result["tokens"]] == [["token", "logprob"]] * 12
    assert "".join(token["token"] for token in result["tokens"]) == result["output"]


def test_the_output_is_what_the_model_decodes(ask, decode):
    sources = draw_sources(32)
    expected = decode(sources)
    answer = ask(PATH, inputs=sources)
    for index, result in enumerate(answer["results"]):
        assert result["output"] == SOURCES.decode(expected.tokens[index])
        assert result["finish_reason"] == "stop"
        logprobs = [token["logprob"] for token in result["tokens"]]
        np.testing.assert_allclose(logprobs, expected.log_probs[index], atol=ATOL)
        assert max(logprobs) <= 0


@pytest.mark.parametrize("limit", [1, 5, 11])
def test_a_limit_cuts_the_output_and_says_so(ask, limit):
    whole = ask(PATH, inputs=SOURCE)["results"][0]
    cut = ask(PATH, inputs=SOURCE, max_new_tokens=limit)
    (result,) = cut["results"]
    assert result["output"] == whole["output"][:limit]
    assert result["finish_reason"] == "length"
    assert len(result["tokens"]) == limit
    assert cut["usage"] == {"input_tokens": 12, "output_tokens": limit}


@pytest.mark.parametrize("limit", [None, 12, 13, 10**9])
def test_a_limit_that_the_output_does_not_reach_changes_nothing(ask, limit):
    assert ask(PATH, inputs=SOURCE, max_new_tokens=limit) == ask(PATH, inputs=SOURCE)


@pytest.mark.parametrize(
    ("eos_id", "count", "has_ended", "reason"),
    [
        (None, 12, False, "stop"),
        (None, 5, False, "length"),
        (0, 4, True, "stop"),
        (0, 0, True, "stop"),
        (0, 12, True, "stop"),
        (0, 5, False, "length"),
        (0, 12, False, "length"),
    ],
)
def test_an_output_is_whole_where_nothing_more_could_have_come(eos_id, count, has_ended, reason):
    card = next(card for card in tiny.cards() if card.name == "reversal")
    model = fake_model(replace(card, config=card.config | {"eos_id": eos_id}))
    row = {"source": np.arange(SOURCE_LEN)}
    target = Target(np.ones(count, np.int32), np.zeros(count, np.float32), has_ended)
    result = _result(Job(model, [row], None), row, target, None)
    assert (result.finish_reason, len(result.tokens)) == (reason, count)


def test_many_sources_are_encoded_in_another_thread_than_the_one_that_serves(ask, monkeypatch):
    threads = []
    encode = Vocabulary.encode

    def note(*arguments):
        threads.append(threading.current_thread())
        return encode(*arguments)

    monkeypatch.setattr(Vocabulary, "encode", note)
    count = FEW_SYMBOLS // len(SOURCE) + 1
    ask(PATH, inputs=[SOURCE] * count)
    assert len(threads) == count
    # The executor of a loop names its threads so; the loop itself runs in none of them.
    assert all(thread.name.startswith("asyncio_") for thread in threads)


def test_attention_is_the_models_and_its_rows_sum_to_one(ask, look):
    attention = ask(PATH, inputs=SOURCE, attention=True)["results"][0]["attention"]
    output = ask(PATH, inputs=SOURCE)["results"][0]["output"]
    assert list(attention) == [
        "source_tokens",
        "target_tokens",
        "layers",
        "heads",
        "shape",
        "weights",
    ]
    assert attention["source_tokens"] == list(SOURCE)
    assert attention["target_tokens"] == list(output)
    assert attention["shape"] == [1, 2, 12, 12]
    weights = np.array(attention["weights"])
    np.testing.assert_allclose(weights, look(SOURCE), atol=ATOL)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=ATOL)


def test_attention_of_a_cut_output_has_a_row_for_every_token_of_it(ask):
    whole = ask(PATH, inputs=SOURCE, attention=True)["results"][0]["attention"]
    cut = ask(PATH, inputs=SOURCE, attention=True, max_new_tokens=3)["results"][0]
    assert cut["attention"]["shape"] == [1, 2, 3, 12]
    np.testing.assert_allclose(
        cut["attention"]["weights"], np.array(whole["weights"])[:, :, :3], atol=ATOL
    )
    assert len(cut["alignment"]["source_positions"]) == 3


def test_heads_can_be_chosen_averaged_and_packed(ask):
    def attention(**asked):
        return ask(PATH, inputs=SOURCE, attention=asked)["results"][0]["attention"]

    everything = np.array(attention()["weights"])
    second = attention(layers=[0], heads=[1])
    assert (second["layers"], second["heads"]) == ([0], [1])
    np.testing.assert_array_equal(second["weights"], everything[:, 1:])
    mean = attention(heads="mean", encoding="base64")
    assert (mean["heads"], mean["shape"]) == (["mean"], [1, 1, 12, 12])
    values = np.frombuffer(base64.b64decode(mean["weights"]), "<f4").reshape(1, 1, 12, 12)
    np.testing.assert_allclose(values, everything.mean(axis=1, keepdims=True), atol=ATOL)


@pytest.mark.parametrize("asked", [True, {"heads": [1]}, {"heads": "mean"}], ids=str)
def test_alignment_says_where_the_mean_of_all_heads_looks(ask, look, asked):
    alignment = ask(PATH, inputs=SOURCE, attention=asked)["results"][0]["alignment"]
    assert list(alignment) == ["source_positions", "weights", "hit_rate", "mean_weight"]
    mean = look(SOURCE)[-1].mean(axis=0)
    assert alignment["source_positions"] == mean.argmax(axis=1).tolist()
    np.testing.assert_allclose(alignment["weights"], mean.max(axis=1), atol=ATOL)
    truth = np.arange(SOURCE_LEN)[::-1]
    assert alignment["hit_rate"] == pytest.approx((mean.argmax(axis=1) == truth).mean())
    on_truth = mean[np.arange(SOURCE_LEN), truth].mean()
    assert alignment["mean_weight"] == pytest.approx(on_truth, abs=ATOL)


def test_perfect_attention_hits_every_true_position():
    found = align(np.eye(5)[::-1], 5, 5, "reverse")
    assert found.source_positions == [4, 3, 2, 1, 0]
    assert (found.hit_rate, found.mean_weight) == (1.0, 1.0)
    straight = align(np.eye(4), 4, 4, "reverse")
    assert (straight.hit_rate, straight.mean_weight) == (0.0, 0.0)


def test_alignment_ignores_padding_and_counts_from_the_true_end():
    padded = np.zeros((8, 8))
    padded[:3, :5] = np.eye(5)[::-1][:3]
    found = align(padded, 3, 5, "reverse")
    assert found.source_positions == [4, 3, 2]
    assert found.hit_rate == 1.0


def test_where_the_task_fixes_no_alignment_no_figures_are_made_up():
    found = align(np.eye(3), 3, 3, None)
    assert found.source_positions == [0, 1, 2]
    assert found.hit_rate is None
    assert found.mean_weight is None


def test_one_source_in_a_list_is_answered_like_the_source_itself(ask):
    for options in ({}, {"attention": True}):
        assert ask(PATH, inputs=[SOURCE], **options) == ask(PATH, inputs=SOURCE, **options)


def test_many_sources_are_answered_like_each_by_itself(ask):
    sources = draw_sources(40, seed=1)
    together = ask(PATH, inputs=sources, attention=True)
    assert together["usage"] == {"input_tokens": 480, "output_tokens": 480}
    for source, result in zip(sources[::5], together["results"][::5], strict=True):
        alone = ask(PATH, inputs=source, attention=True)["results"][0]
        assert alone["output"] == result["output"]
        np.testing.assert_allclose(
            alone["attention"]["weights"], result["attention"]["weights"], atol=ATOL
        )
        assert alone["alignment"]["source_positions"] == result["alignment"]["source_positions"]


def test_attention_is_not_sent_where_it_is_not_wanted(ask):
    for wanted in (False, None):
        assert list(ask(PATH, inputs=SOURCE, attention=wanted)["results"][0]) == [
            "output",
            "finish_reason",
            "tokens",
        ]

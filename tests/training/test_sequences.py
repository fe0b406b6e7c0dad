import dataclasses
from functools import cache, partial

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from models.beam_search import beam_search
from models.decoding import decode
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from training import sequences
from training.sequences import (
    decode_all,
    decode_with_attention,
    edit_distance,
    error_rates,
    make_batch,
    pad,
    sequence_loss,
)
from training.step import jitted

# Sums of a few dozen float32 numbers, taken in another order.
TOLERANCE = 1e-5
ENDING = EncoderDecoderConfig(
    source_vocab_size=7,
    target_vocab_size=6,
    bos_id=5,
    eos_id=4,
    embed_dim=8,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    max_source_len=7,
    max_target_len=6,
)
ENDLESS = dataclasses.replace(ENDING, eos_id=None, max_target_len=7)
strings = st.lists(st.integers(0, 3), max_size=7)


def ids(*tokens):
    return np.array(tokens, np.int32)


def slow_distance(first, second):
    """By the definition: every way to begin, with nothing remembered but whole answers."""

    @cache
    def distance(left, right):
        if not left or not right:
            return len(left) + len(right)
        if left[0] == right[0]:
            return distance(left[1:], right[1:])
        return 1 + min(
            distance(left[1:], right), distance(left, right[1:]), distance(left[1:], right[1:])
        )

    return distance(tuple(first), tuple(second))


@given(strings, strings)
def test_the_edit_distance_is_the_fewest_changes(first, second):
    assert edit_distance(ids(*first), ids(*second)) == slow_distance(first, second)


@given(strings, strings, strings)
def test_the_edit_distance_is_a_distance(first, second, third):
    first, second, third = (ids(*tokens) for tokens in (first, second, third))
    assert (edit_distance(first, second) == 0) == np.array_equal(first, second)
    assert edit_distance(first, second) == edit_distance(second, first)
    around = edit_distance(first, third) + edit_distance(third, second)
    assert edit_distance(first, second) <= around


def test_a_symbol_replaced_inserted_or_deleted_is_one_change():
    base = ids(1, 2, 3)
    for other in (ids(1, 0, 3), ids(1, 2, 3, 3), ids(2, 3)):
        assert edit_distance(base, other) == 1
    assert edit_distance(base, ids()) == 3


def test_error_rates_are_shares_of_sequences_and_of_symbols():
    outputs = [ids(1, 2, 3, 1), ids(1, 1), ids(0)]
    references = [[ids(1, 2, 3, 1)], [ids(1, 2)], [ids(0, 1, 2, 3)]]
    rates = error_rates(outputs, references)
    assert rates == {
        "sequence_error_rate": pytest.approx(2 / 3),
        "symbol_error_rate": pytest.approx((0 + 1 + 3) / (4 + 2 + 4)),
    }


def test_of_several_references_the_nearest_counts():
    outputs = [ids(1, 2), ids(1, 2, 3)]
    references = [[ids(0, 0, 0), ids(1, 2), ids(3)], [ids(0, 0, 0), ids(1, 2, 2)]]
    rates = error_rates(outputs, references)
    assert rates["sequence_error_rate"] == 0.5
    assert rates["symbol_error_rate"] == pytest.approx((0 + 1) / (2 + 3))


def test_the_order_of_references_changes_nothing():
    wanted = [ids(1, 2, 3), ids(1), ids(2, 2)]
    rates = [
        error_rates([ids(1, 2)], [[wanted[i] for i in order]])
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0))
    ]
    assert rates[0] == rates[1] == rates[2]


def test_an_output_of_nothing_is_wrong_in_every_symbol():
    rates = error_rates([ids()], [[ids(1, 2, 3)]])
    assert rates == {"sequence_error_rate": 1.0, "symbol_error_rate": 1.0}


def test_outputs_without_references_of_their_own_are_refused():
    with pytest.raises(ValueError, match="zip"):
        error_rates([ids(1), ids(2)], [[ids(1)]])


def test_rows_are_padded_with_zeros_behind():
    padded, lengths = pad([ids(3, 2), ids(), ids(1, 1, 1)], 3)
    assert padded.tolist() == [[3, 2, 0], [0, 0, 0], [1, 1, 1]]
    assert lengths.tolist() == [2, 0, 3]
    assert padded.dtype == lengths.dtype == np.int32


def small_batch(config, targets):
    source = pad([ids(6, 5, 4), ids(3)], 5)
    return make_batch(config, *source, *pad(targets, 5))


def test_a_batch_asks_for_targets_and_their_end_behind_the_start_token():
    batch = small_batch(ENDING, [ids(1, 2, 3, 1), ids(2)])
    assert batch["source"].tolist() == [[6, 5, 4, 0, 0], [3, 0, 0, 0, 0]]
    assert batch["lengths"].tolist() == [3, 1]
    assert batch["targets"].tolist() == [[1, 2, 3, 1, 4], [2, 4, 0, 0, 0]]
    assert batch["target_lengths"].tolist() == [5, 2]
    assert batch["inputs"].tolist() == [[5, 1, 2, 3, 1], [5, 2, 4, 0, 0]]


def test_without_an_end_token_a_batch_asks_for_targets_alone():
    batch = small_batch(ENDLESS, [ids(1, 2, 3), ids(2)])
    assert batch["targets"].tolist() == [[1, 2, 3, 0, 0], [2, 0, 0, 0, 0]]
    assert batch["target_lengths"].tolist() == [3, 1]
    assert batch["inputs"].tolist() == [[5, 1, 2, 3, 0], [5, 2, 0, 0, 0]]


def test_making_a_batch_leaves_what_it_was_given_alone():
    source, target = pad([ids(6)], 3), pad([ids(1, 2)], 3)
    make_batch(ENDING, *source, *target)
    assert target[0].tolist() == [[1, 2, 0]]
    assert target[1].tolist() == [2]


def test_a_target_that_leaves_no_room_for_its_end_is_refused():
    with pytest.raises(IndexError):
        small_batch(ENDING, [ids(1, 2, 3, 1, 1), ids(2)])


@pytest.fixture(scope="module")
def models():
    """Untrained ones, whose targets differ."""

    def build(config):
        model = EncoderDecoder(config, rngs=nnx.Rngs(0))
        model.target_positions.embedding[...] = model.target_positions.embedding[...] * 100
        return model

    return {"ending": build(ENDING), "endless": build(ENDLESS)}


def test_the_loss_counts_targets_and_their_ends_and_no_padding(models):
    loss = jitted(models["ending"], sequence_loss)
    batch = small_batch(ENDING, [ids(1, 2, 3, 1), ids(2)])
    expected = loss(batch)
    assert float(expected.num_counted) == 4 + 1 + 2
    spoiled = {name: values.copy() for name, values in batch.items()}
    spoiled["source"][0, 3:] = spoiled["source"][1, 1:3] = 1
    spoiled["inputs"][1, 2:] = 3
    spoiled["targets"][1, 2:] = 3
    np.testing.assert_allclose(loss(spoiled), expected, rtol=TOLERANCE)
    forward = jitted(models["ending"], EncoderDecoder.__call__)
    logits, _ = forward(
        *(batch[name] for name in ("source", "lengths", "inputs", "target_lengths"))
    )
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    total = -log_probs[0, np.arange(5), [1, 2, 3, 1, 4]].sum()
    total -= log_probs[1, [0, 1], [2, 4]].sum()
    assert float(expected.total) == pytest.approx(total, rel=TOLERANCE)


def some_sources():
    generator = np.random.default_rng(0)
    return [generator.integers(0, 7, 3 + index % 5, dtype=np.int32) for index in range(11)]


@pytest.fixture
def small_batches(monkeypatch):
    """Several batches of a few sources, the last of them not full."""
    monkeypatch.setattr(sequences, "DECODING_BATCH", 4)


@pytest.mark.parametrize("kind", ["ending", "endless"])
def test_every_source_is_decoded_in_its_place_whatever_the_order(models, small_batches, kind):
    sources = some_sources()
    together = decode_all(models[kind], sources)
    order = np.random.default_rng(1).permutation(len(sources))
    shuffled = decode_all(models[kind], [sources[index] for index in order])
    for index, output in zip(order, shuffled, strict=True):
        np.testing.assert_array_equal(together[index], output)
    run = jitted(models[kind], decode)
    sizes = [7 if kind == "ending" else len(source) for source in sources]
    padded, lengths = pad(sources, 7)
    decoded = run(padded, lengths, np.array(sizes, np.int32))
    for row, output in enumerate(together):
        np.testing.assert_array_equal(decoded.tokens[row, : decoded.lengths[row]], output)
    assert len({tuple(output) for output in together}) > 2, "all rows alike"


def test_without_an_end_token_an_output_is_as_long_as_its_source(models, small_batches):
    for num_beams in (1, 2):
        outputs = decode_all(models["endless"], some_sources(), num_beams=num_beams)
        assert [len(output) for output in outputs] == [len(s) for s in some_sources()]


def test_with_several_beams_the_best_hypothesis_is_the_output(models, small_batches):
    sources = some_sources()
    found = decode_all(models["ending"], sources, num_beams=4)
    run = jitted(models["ending"], partial(beam_search, max_beams=4))
    limits, beams = np.full(len(sources), 6, np.int32), np.full(len(sources), 4, np.int32)
    hypotheses = run(*pad(sources, 7), limits, beams)
    for row, output in enumerate(found):
        best = hypotheses.tokens[row, 0, : hypotheses.lengths[row, 0]]
        np.testing.assert_array_equal(best, output)


def test_no_sources_have_no_outputs(models):
    assert decode_all(models["ending"], []) == []


def test_attention_comes_with_what_was_decoded(models):
    source, lengths = pad(some_sources()[:3], 7)
    decoded, maps = jitted(models["endless"], decode_with_attention)(source, lengths)
    np.testing.assert_array_equal(decoded.lengths, lengths)
    assert maps.shape == (3, 1, 2, 7, 7)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(maps[row, ..., :length, :length].sum(axis=-1), 1, rtol=TOLERANCE)

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.checkpoint import flatten
from models.encoder_decoder import SOURCE_ORDERS, EncoderDecoder, EncoderDecoderConfig
from training.step import jitted

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
SIZE, WIDER = 8, 12
SOURCE_LENGTHS = np.array([8, 3, 5, 1], np.int32)
TARGET_LENGTHS = np.array([8, 6, 2, 3], np.int32)
BATCH = len(SOURCE_LENGTHS)
UNLIKE_CONFIG = EncoderDecoderConfig(
    source_vocab_size=9,
    target_vocab_size=6,
    bos_id=5,
    eos_id=4,
    embed_dim=16,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_source_len=8,
    max_target_len=5,
)


def draw(vocab_size, *shape):
    return np.random.default_rng(0).integers(0, vocab_size, shape, dtype=np.int32)


@pytest.fixture(scope="module")
def teacher_forced(encoder_decoder):
    return jitted(encoder_decoder, EncoderDecoder.__call__)


@pytest.fixture(scope="module")
def source(encoder_decoder):
    return draw(encoder_decoder.config.bos_id, BATCH, WIDER)


@pytest.fixture(scope="module")
def target(encoder_decoder):
    target = draw(encoder_decoder.config.bos_id, BATCH, WIDER)[:, ::-1].copy()
    target[:, 0] = encoder_decoder.config.bos_id
    return target


def assert_same(expected, got):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=TOLERANCE), expected, got)


def rows(outputs):
    """What teacher forcing says of each row's own positions."""
    logits, weights = (np.asarray(output) for output in outputs)
    pairs = zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True)
    return [
        (logits[row, :steps], weights[row, :, :, :steps, :length])
        for row, (length, steps) in enumerate(pairs)
    ]


def test_padding_does_not_change_an_answer(teacher_forced, source, target):
    short = teacher_forced(source[:, :SIZE], SOURCE_LENGTHS, target[:, :SIZE], TARGET_LENGTHS)
    wide = teacher_forced(source, SOURCE_LENGTHS, target, TARGET_LENGTHS)
    assert_same(rows(short), rows(wide))


def test_a_batch_of_one_equals_a_batch_of_many(teacher_forced, source, target):
    together = rows(teacher_forced(source, SOURCE_LENGTHS, target, TARGET_LENGTHS))
    for row, expected in enumerate(together):
        one = slice(row, row + 1)
        logits, weights = teacher_forced(
            source[one], SOURCE_LENGTHS[one], target[one], TARGET_LENGTHS[one]
        )
        steps, length = TARGET_LENGTHS[row], SOURCE_LENGTHS[row]
        assert_same(expected, (logits[0, :steps], weights[0, :, :, :steps, :length]))


def test_no_output_depends_on_later_target_tokens(teacher_forced, source, target):
    lengths = np.full(BATCH, WIDER, np.int32)
    expected = teacher_forced(source, SOURCE_LENGTHS, target, lengths)
    for position in (1, 6, WIDER - 1):
        changed = target.copy()
        changed[:, position:] = (changed[:, position:] + 1) % 16
        got = teacher_forced(source, SOURCE_LENGTHS, changed, lengths)
        assert_same(expected[0][:, :position], got[0][:, :position])
        assert_same(expected[1][:, :, :, :position], got[1][:, :, :, :position])
        assert np.abs(np.asarray(expected[0] - got[0]))[:, position].max() > TOLERANCE


def test_cross_attention_rows_sum_to_one_and_leave_padding_out(teacher_forced, source, target):
    weights = np.asarray(teacher_forced(source, SOURCE_LENGTHS, target, TARGET_LENGTHS)[1])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=TOLERANCE)
    for row, length in enumerate(SOURCE_LENGTHS):
        assert (weights[row, ..., length:] == 0).all()


def test_a_source_and_its_target_have_vocabularies_and_lengths_of_their_own():
    model = nnx.eval_shape(lambda: EncoderDecoder(UNLIKE_CONFIG, rngs=nnx.Rngs(0)))
    shapes = {name: leaf.shape for name, leaf in flatten(nnx.state(model, nnx.Param)).items()}
    assert shapes["source_embedding.embedding"] == (9, 16)
    assert shapes["source_positions.embedding"] == (8, 16)
    assert shapes["target_embedding.embedding"] == (6, 16)
    assert shapes["target_positions.embedding"] == (5, 16)
    assert shapes["head.kernel"] == (16, 6)


def test_a_source_of_another_vocabulary_and_length_is_read():
    model = EncoderDecoder(UNLIKE_CONFIG, rngs=nnx.Rngs(0))
    source, target = draw(9, BATCH, 8), draw(4, BATCH, 5)
    lengths = np.array([5, 2, 1, 3], np.int32)
    logits, weights = jitted(model, EncoderDecoder.__call__)(
        source, SOURCE_LENGTHS, target, lengths
    )
    assert logits.shape == (BATCH, 5, 6)
    assert weights.shape == (BATCH, 2, 2, 5, 8)
    assert np.isfinite(logits).all()
    assert np.isfinite(weights).all()


def test_a_target_has_the_length_of_its_source_unless_an_end_token_says_where_it_ends():
    alike = EncoderDecoderConfig.debug(6, 5)
    assert [alike.max_new_tokens(size) for size in (1, 12, 99)] == [1, 12, 12]
    assert [UNLIKE_CONFIG.max_new_tokens(size) for size in (1, 8)] == [5, 5]


@pytest.fixture(scope="module")
def encode():
    return jax.jit(EncoderDecoder.encode)


@pytest.fixture(scope="module")
def by_order(encoder_decoder):
    """The same parameters, with source positions counted from either side."""

    def build(order):
        config = dataclasses.replace(encoder_decoder.config, source_order=order)
        model = EncoderDecoder(config, rngs=nnx.Rngs(0))
        nnx.update(model, nnx.state(encoder_decoder, nnx.Param))
        return model

    return {order: build(order) for order in SOURCE_ORDERS}


def memories_of(memories, row, length):
    return jax.tree.map(lambda values: np.asarray(values)[row, :, :length], memories)


def renumbered(model, order):
    """A model whose position i is what position ``order[i]`` was."""
    other = nnx.clone(model)
    table = np.asarray(model.source_positions.embedding[...])
    other.source_positions.embedding[...] = jnp.array(table[order])
    return other


@pytest.mark.parametrize("order", SOURCE_ORDERS)
def test_padding_of_a_source_changes_nothing_wherever_positions_are_counted_from(
    encode, by_order, source, order
):
    short = encode(by_order[order], source[:, :SIZE], SOURCE_LENGTHS)
    wide = encode(by_order[order], source, SOURCE_LENGTHS)
    for row, length in enumerate(SOURCE_LENGTHS):
        assert_same(memories_of(short, row, length), memories_of(wide, row, length))


def test_positions_from_the_end_are_counted_from_where_each_source_really_ends(
    encode, by_order, source
):
    """Each row, padding and all, reads as one whose first symbol has position length - 1."""
    got = encode(by_order["end"], source, SOURCE_LENGTHS)
    for row, length in enumerate(SOURCE_LENGTHS):
        down = np.abs(length - 1 - np.arange(WIDER))
        expected = encode(renumbered(by_order["start"], down), source, SOURCE_LENGTHS)
        assert_same(memories_of(expected, row, length), memories_of(got, row, length))


def test_positions_from_either_side_are_not_the_same(encode, by_order, source):
    start, end = (encode(by_order[order], source, SOURCE_LENGTHS) for order in SOURCE_ORDERS)
    differences = [
        np.abs(memories_of(start, row, length)[0].keys - memories_of(end, row, length)[0].keys)
        for row, length in enumerate(SOURCE_LENGTHS)
    ]
    assert [difference.max() > TOLERANCE for difference in differences] == [True, True, True, False]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bos_id": 6}, "bos_id: expected 0..5, got 6"),
        ({"bos_id": -1}, "bos_id: expected 0..5, got -1"),
        ({"eos_id": 6}, "eos_id: expected 0..5, got 6"),
        ({"num_heads": 3}, "num_heads: expected a divisor of embed_dim 16, got 3"),
        (
            {"max_source_len": 0, "num_decoder_layers": 0},
            "expected sizes of at least 1, got num_decoder_layers=0, max_source_len=0",
        ),
        (
            {"source_vocab_size": 0, "target_vocab_size": -1, "max_target_len": 0},
            "got source_vocab_size=0, target_vocab_size=-1, max_target_len=0",
        ),
        (
            {"source_order": "middle"},
            r"source_order: expected one of \('start', 'end'\), got 'middle'",
        ),
    ],
)
def test_an_impossible_config_is_refused_with_what_was_expected(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(UNLIKE_CONFIG, **changed)

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from training.step import jitted

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
SIZE, WIDER = 8, 12
SOURCE_LENGTHS = np.array([8, 3, 5, 1], np.int32)
TARGET_LENGTHS = np.array([8, 6, 2, 3], np.int32)
BATCH = len(SOURCE_LENGTHS)
EOS_CONFIG = EncoderDecoderConfig(
    vocab_size=6,
    bos_id=5,
    eos_id=4,
    embed_dim=16,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_len=WIDER,
)
EOS_BATCH = 16


def draw(vocab_size, *shape):
    return np.random.default_rng(0).integers(0, vocab_size, shape, dtype=np.int32)


@pytest.fixture(scope="module")
def teacher_forced(encoder_decoder):
    return jitted(encoder_decoder, EncoderDecoder.__call__)


@pytest.fixture(scope="module")
def decode(encoder_decoder):
    return jitted(encoder_decoder, EncoderDecoder.decode)


@pytest.fixture(scope="module")
def source(encoder_decoder):
    return draw(encoder_decoder.config.bos_id, BATCH, WIDER)


@pytest.fixture(scope="module")
def target(encoder_decoder):
    target = draw(encoder_decoder.config.bos_id, BATCH, WIDER)[:, ::-1].copy()
    target[:, 0] = encoder_decoder.config.bos_id
    return target


@pytest.fixture(scope="module")
def stopping():
    """A model with an end token, which it likes well enough to end some rows early."""
    model = EncoderDecoder(EOS_CONFIG, rngs=nnx.Rngs(0))
    return model, jitted(model, EncoderDecoder.decode), jitted(model, EncoderDecoder.__call__)


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


def decoded_rows(decoded):
    """What decoding gave each row, without what means nothing."""
    tokens, lengths, log_probs, attention = (np.asarray(part) for part in decoded)
    return [
        (tokens[row], log_probs[row, :size], attention[row, :, :, :size, :length])
        for row, (size, length) in enumerate(zip(lengths, SOURCE_LENGTHS, strict=False))
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


def test_decoding_does_not_depend_on_the_padding_of_the_source(decode, source):
    limits = np.minimum(TARGET_LENGTHS, SIZE)
    short = decode(source[:, :SIZE], SOURCE_LENGTHS, limits)
    wide = decode(source, SOURCE_LENGTHS, limits)
    np.testing.assert_array_equal(short.lengths, wide.lengths)
    np.testing.assert_array_equal(short.tokens, wide.tokens[:, :SIZE])
    for (_, *expected), (_, *got) in zip(decoded_rows(short), decoded_rows(wide), strict=True):
        assert_same(expected, got)


def test_decoding_a_batch_of_one_equals_a_batch_of_many(decode, source):
    together = decoded_rows(decode(source, SOURCE_LENGTHS, TARGET_LENGTHS))
    for row, expected in enumerate(together):
        one = slice(row, row + 1)
        alone = decode(source[one], SOURCE_LENGTHS[one], TARGET_LENGTHS[one])
        size, length = int(alone.lengths[0]), SOURCE_LENGTHS[row]
        parts = (alone.log_probs[0, :size], alone.attention[0, :, :, :size, :length])
        np.testing.assert_array_equal(expected[0], alone.tokens[0])
        assert_same(expected[1:], parts)


def decode_again(teacher_forced, config, source, lengths, limits):
    """Greedy decoding that runs the whole prefix through the model at every step."""
    batch, size = source.shape
    inputs = np.full((batch, size + 1), config.bos_id, np.int32)
    log_probs, done = np.zeros((batch, size), np.float32), limits <= 0
    out_lengths, attention = np.zeros(batch, np.int32), None
    for step in range(size):
        full = np.full(batch, size, np.int32)
        logits, attention = teacher_forced(source, lengths, inputs[:, :size], full)
        logits = np.array(logits[:, step])
        logits[:, config.bos_id] = -np.inf
        chosen = logits.argmax(axis=-1)
        log_probs[:, step] = np.asarray(jax.nn.log_softmax(logits, axis=-1)).max(axis=-1)
        done = done | (chosen == config.eos_id)
        out_lengths += ~done
        inputs[:, step + 1] = chosen
        done = done | (step + 1 >= limits)
    kept = np.arange(size)[None] < out_lengths[:, None]
    return np.where(kept, inputs[:, 1:], 0), out_lengths, log_probs, np.asarray(attention)


def assert_decoded(decoded, expected, source_lengths):
    tokens, lengths, log_probs, attention = expected
    np.testing.assert_array_equal(decoded.lengths, lengths)
    np.testing.assert_array_equal(decoded.tokens, tokens)
    for row, size in enumerate(lengths):
        assert_same(log_probs[row, :size], decoded.log_probs[row, :size])
        length = source_lengths[row]
        assert_same(
            attention[row, :, :, :size, :length], decoded.attention[row, :, :, :size, :length]
        )


def test_cached_decoding_equals_running_the_whole_prefix_again(
    decode, teacher_forced, source, encoder_decoder
):
    decoded = decode(source, SOURCE_LENGTHS, TARGET_LENGTHS)
    config = encoder_decoder.config
    expected = decode_again(teacher_forced, config, source, SOURCE_LENGTHS, TARGET_LENGTHS)
    assert_decoded(decoded, expected, SOURCE_LENGTHS)


def test_each_row_ends_after_its_own_limit(decode, source):
    limits = np.array([0, 3, 12, 99], np.int32)
    decoded = decode(source, SOURCE_LENGTHS, limits)
    np.testing.assert_array_equal(decoded.lengths, [0, 3, 12, 12])
    for row, size in enumerate(decoded.lengths):
        assert (np.asarray(decoded.tokens)[row, size:] == 0).all()


def test_rows_end_at_the_end_token_which_is_left_out(stopping):
    _, decode, teacher_forced = stopping
    source = draw(4, EOS_BATCH, WIDER)
    lengths = np.arange(EOS_BATCH, dtype=np.int32) % WIDER + 1
    limits = np.full(EOS_BATCH, WIDER, np.int32)
    decoded = decode(source, lengths, limits)
    found = np.asarray(decoded.lengths)
    assert found.min() < WIDER, "no row ended early, so nothing was tested"
    assert len(set(found)) > 2, "all rows ended together, so nothing was tested"
    assert not (np.asarray(decoded.tokens) == EOS_CONFIG.eos_id).any()
    assert_decoded(
        decoded, decode_again(teacher_forced, EOS_CONFIG, source, lengths, limits), lengths
    )


def test_the_start_token_is_never_emitted(stopping):
    """Even where it is the likeliest by far: its column of the head is turned and enlarged."""
    model, _, _ = stopping
    loud = nnx.clone(model)
    loud.head.kernel[...] = loud.head.kernel[...].at[:, EOS_CONFIG.bos_id].multiply(-100.0)
    source = draw(4, EOS_BATCH, WIDER)
    lengths = np.full(EOS_BATCH, WIDER, np.int32)
    bos = np.full((EOS_BATCH, WIDER), EOS_CONFIG.bos_id, np.int32)
    logits = jitted(loud, EncoderDecoder.__call__)(source, lengths, bos, lengths)[0]
    likeliest = np.asarray(logits).argmax(axis=-1)
    assert (likeliest == EOS_CONFIG.bos_id).any(), "the start token never won"
    decoded = jitted(loud, EncoderDecoder.decode)(source, lengths, lengths)
    inside = np.arange(WIDER)[None] < np.asarray(decoded.lengths)[:, None]
    assert not (np.asarray(decoded.tokens)[inside] == EOS_CONFIG.bos_id).any()
    assert np.isfinite(decoded.log_probs).all()


def test_log_probabilities_are_those_of_the_tokens_that_can_be_emitted(decode, source):
    decoded = decode(source, SOURCE_LENGTHS, TARGET_LENGTHS)
    log_probs = np.asarray(decoded.log_probs)
    assert (log_probs <= 0).all()
    for row, size in enumerate(decoded.lengths):
        # The likeliest of 16 tokens has at least a sixteenth of the probability.
        assert (log_probs[row, :size] >= -np.log(16) - TOLERANCE).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bos_id": 6}, "bos_id: expected 0..5, got 6"),
        ({"bos_id": -1}, "bos_id: expected 0..5, got -1"),
        ({"eos_id": 6}, "eos_id: expected 0..5, got 6"),
        ({"num_heads": 3}, "num_heads: expected a divisor of embed_dim 16, got 3"),
        ({"max_len": 0, "num_decoder_layers": 0}, "got num_decoder_layers=0, max_len=0"),
    ],
)
def test_an_impossible_config_is_refused_with_what_was_expected(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(EOS_CONFIG, **changed)

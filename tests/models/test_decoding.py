import dataclasses
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.decoding import (
    Decoded,
    DecodingState,
    advance,
    cross_attention,
    decode,
    pack,
    packed_shapes,
    start,
    unpack,
)
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
NARROW, WIDE, MAX_TARGET = 6, 9, 7
BATCH = 12
ENDING = EncoderDecoderConfig(
    source_vocab_size=9,
    target_vocab_size=6,
    bos_id=5,
    eos_id=4,
    embed_dim=16,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_source_len=WIDE,
    max_target_len=MAX_TARGET,
    source_order="end",
)
ENDLESS = dataclasses.replace(ENDING, eos_id=None, max_target_len=WIDE, source_order="start")
CONFIGS = {"with an end token": ENDING, "without an end token": ENDLESS}
LENGTHS = np.arange(BATCH, dtype=np.int32) % NARROW + 1
LIMITS = np.full(BATCH, 99, np.int32)


def draw_source(size=NARROW):
    return np.random.default_rng(0).integers(0, 9, (BATCH, size), dtype=np.int32)


@pytest.fixture(scope="module")
def models():
    """Untrained ones, whose targets differ: they heed position, last token and source enough."""

    def build(config):
        model = EncoderDecoder(config, rngs=nnx.Rngs(0))
        scales = [(model.target_positions.embedding, 100), (model.target_embedding.embedding, 10)]
        scales += [(block.cross_attention.out_proj.kernel, 2) for block in model.decoder_blocks]
        for leaf, scale in scales:
            leaf[...] = leaf[...] * scale
        return model

    return {kind: build(config) for kind, config in CONFIGS.items()}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request, models):
    return models[request.param]


@pytest.fixture(scope="module")
def ending(models):
    return models["with an end token"]


@pytest.fixture(scope="module")
def run():
    """Everything that is tested here, compiled once a shape."""
    steps = {n: jax.jit(partial(advance, num_steps=n)) for n in (1, 3, MAX_TARGET)}
    return SimpleNamespace(
        decode=jax.jit(decode),
        start=jax.jit(start),
        advance=lambda model, state, num_steps: steps[num_steps](model, state),
        forward=jax.jit(EncoderDecoder.__call__),
        cross_attention=jax.jit(cross_attention),
    )


def assert_same_targets(expected, got):
    np.testing.assert_array_equal(expected.tokens, got.tokens)
    np.testing.assert_array_equal(expected.lengths, got.lengths)
    np.testing.assert_array_equal(expected.has_ended, got.has_ended)
    np.testing.assert_allclose(expected.log_probs, got.log_probs, atol=TOLERANCE)


def rows_of(tree, rows):
    return jax.tree.map(lambda values: values[rows], tree)


def decode_again(forward, model, source, lengths, limits):
    """Greedy decoding that runs the whole prefix through the model at every step."""
    config, batch = model.config, len(source)
    size = config.max_new_tokens(source.shape[1])
    inputs = np.full((batch, size + 1), config.bos_id, np.int32)
    log_probs, has_ended = np.zeros((batch, size), np.float32), np.zeros(batch, bool)
    out_lengths, all_real = np.zeros(batch, np.int32), np.full(batch, size, np.int32)
    for step in range(size):
        logits = np.array(forward(model, source, lengths, inputs[:, :size], all_real)[0][:, step])
        logits[:, config.bos_id] = -np.inf
        chosen = logits.argmax(axis=-1)
        running = ~has_ended & (out_lengths == step) & (step < limits)
        has_ended |= running & (chosen == config.eos_id)
        kept = running & ~has_ended
        out_lengths += kept
        inputs[:, step + 1] = np.where(kept, chosen, 0)
        best = np.asarray(jax.nn.log_softmax(logits, axis=-1)).max(axis=-1)
        log_probs[:, step] = np.where(kept, best, 0)
    return Decoded(inputs[:, 1:], out_lengths, log_probs, has_ended)


def test_decoding_equals_running_the_whole_prefix_again(run, model):
    source = draw_source()
    decoded = run.decode(model, source, LENGTHS, LIMITS)
    assert len({tuple(row) for row in np.asarray(decoded.tokens)}) > 4, "all rows alike"
    assert_same_targets(decode_again(run.forward, model, source, LENGTHS, LIMITS), decoded)


def test_the_model_with_an_end_token_ends_some_rows_and_a_limit_the_others(run, ending):
    """What the other tests stand on."""
    decoded = run.decode(ending, draw_source(), LENGTHS, LIMITS)
    assert 2 < np.sum(decoded.has_ended) < BATCH - 1
    assert len(set(np.asarray(decoded.lengths).tolist())) > 2


@pytest.mark.parametrize("parts", [(1,) * MAX_TARGET, (3, 3, 3), (1, 3, 1, 3), (MAX_TARGET,)])
def test_decoding_in_parts_of_any_sizes_equals_decoding_in_one_go(run, ending, parts):
    source = draw_source()
    expected = run.decode(ending, source, LENGTHS, LIMITS)
    state = run.start(ending, source, LENGTHS, LIMITS)
    for num_steps in parts:
        state = run.advance(ending, state, num_steps)
    assert_same_targets(expected, state.decoded)
    assert not np.any(state.is_running)


def test_each_part_is_a_beginning_of_the_whole(run, ending):
    source = draw_source()
    whole = run.decode(ending, source, LENGTHS, LIMITS)
    state = run.start(ending, source, LENGTHS, LIMITS)
    for num_done in range(1, MAX_TARGET + 1):
        state = run.advance(ending, state, 1)
        decoded = state.decoded
        np.testing.assert_array_equal(decoded.lengths, np.minimum(whole.lengths, num_done))
        written = np.arange(MAX_TARGET)[None] < np.asarray(decoded.lengths)[:, None]
        np.testing.assert_array_equal(decoded.tokens, np.where(written, whole.tokens, 0))
        expected = ~np.asarray(whole.has_ended) & (np.asarray(whole.lengths) > num_done)
        ends_later = np.asarray(whole.has_ended) & (np.asarray(whole.lengths) >= num_done)
        np.testing.assert_array_equal(state.is_running, expected | ends_later)


def test_nothing_is_decoded_at_the_start(run, ending):
    state = run.start(ending, draw_source(), LENGTHS, LIMITS)
    assert isinstance(state, DecodingState)
    assert not np.any(state.decoded.tokens)
    assert not np.any(state.decoded.lengths)
    assert not np.any(state.decoded.has_ended)
    assert np.all(state.is_running)


def test_rows_at_different_progress_go_on_in_another_batch_as_they_would_have_alone(run, model):
    """Every other row is three tokens ahead, and all change their places."""
    source = draw_source()
    expected = run.decode(model, source, LENGTHS, LIMITS)
    behind = run.advance(model, run.start(model, source, LENGTHS, LIMITS), 1)
    ahead = behind
    for _ in range(3):
        ahead = run.advance(model, ahead, 1)
    assert np.any(np.asarray(ahead.decoded.lengths) == 4)
    order = np.random.default_rng(1).permutation(BATCH)
    mixed = jax.tree.map(
        lambda late, early: jnp.where(
            (order % 2 == 0).reshape(-1, *(1,) * (late.ndim - 1)), late[order], early[order]
        ),
        ahead,
        behind,
    )
    finished = run.advance(model, mixed, MAX_TARGET).decoded
    assert_same_targets(rows_of(expected, order), finished)


def test_a_row_that_has_ended_is_not_changed_by_more_steps(run, model):
    state = run.advance(model, run.start(model, draw_source(), LENGTHS, LIMITS), MAX_TARGET)
    assert not np.any(state.is_running)
    again = run.advance(model, state, MAX_TARGET)
    jax.tree.map(np.testing.assert_array_equal, state.decoded, again.decoded)


def test_a_batch_of_one_equals_a_batch_of_many(run, model):
    source = draw_source()
    together = run.decode(model, source, LENGTHS, LIMITS)
    for row in range(BATCH):
        one = slice(row, row + 1)
        alone = run.decode(model, source[one], LENGTHS[one], LIMITS[one])
        assert_same_targets(rows_of(together, one), alone)


def test_padding_of_the_source_changes_nothing(run, model):
    """Without an end token the room for a target grows with the source, so limits are set."""
    source = draw_source(WIDE)
    limits = np.full(BATCH, NARROW, np.int32)
    narrow = run.decode(model, source[:, :NARROW], LENGTHS, limits)
    wide = run.decode(model, source, LENGTHS, limits)
    size = narrow.tokens.shape[1]
    assert not np.any(wide.tokens[:, size:])
    cut = wide._replace(tokens=wide.tokens[:, :size], log_probs=wide.log_probs[:, :size])
    assert_same_targets(narrow, cut)


def test_each_row_ends_after_its_own_limit_at_the_latest(run, model):
    source = draw_source()
    unlimited = run.decode(model, source, LENGTHS, LIMITS)
    limits = np.arange(BATCH, dtype=np.int32) // 2
    decoded = run.decode(model, source, LENGTHS, limits)
    np.testing.assert_array_equal(decoded.lengths, np.minimum(unlimited.lengths, limits))
    written = np.arange(decoded.tokens.shape[1])[None] < np.asarray(decoded.lengths)[:, None]
    np.testing.assert_array_equal(decoded.tokens, np.where(written, unlimited.tokens, 0))
    np.testing.assert_array_equal(np.asarray(decoded.log_probs)[~written], 0)


def test_has_ended_is_true_exactly_where_the_end_token_came(run, ending):
    """Where a limit stops a row right before its end token, the model has not ended it."""
    source = draw_source()
    free = run.decode(ending, source, LENGTHS, LIMITS)
    at_the_end = run.decode(ending, source, LENGTHS, np.asarray(free.lengths))
    np.testing.assert_array_equal(at_the_end.tokens, free.tokens)
    assert not np.any(at_the_end.has_ended)
    one_more = run.decode(ending, source, LENGTHS, np.asarray(free.lengths) + 1)
    np.testing.assert_array_equal(one_more.has_ended, free.has_ended)


def test_a_limit_of_nothing_gives_nothing(run, model):
    decoded = run.decode(model, draw_source(), LENGTHS, np.zeros(BATCH, np.int32))
    for part in decoded:
        assert not np.any(part)


def test_without_an_end_token_every_row_has_as_many_tokens_as_it_may(run, models):
    model = models["without an end token"]
    limits = np.minimum(LENGTHS, NARROW)
    decoded = run.decode(model, draw_source(), LENGTHS, limits)
    np.testing.assert_array_equal(decoded.lengths, limits)
    assert not np.any(decoded.has_ended)


def test_the_end_token_is_not_part_of_the_output(run, ending):
    decoded = run.decode(ending, draw_source(), LENGTHS, LIMITS)
    assert np.any(decoded.has_ended)
    assert not np.any(np.asarray(decoded.tokens) == ENDING.eos_id)


def test_the_start_token_is_never_emitted(run, ending):
    """Even where it is the likeliest by far: its column of the head is turned and enlarged."""
    loud = nnx.clone(ending)
    loud.head.kernel[...] = loud.head.kernel[...].at[:, ENDING.bos_id].multiply(-100.0)
    source, room = draw_source(), np.full(BATCH, MAX_TARGET, np.int32)
    bos = np.full((BATCH, MAX_TARGET), ENDING.bos_id, np.int32)
    likeliest = np.asarray(run.forward(loud, source, LENGTHS, bos, room)[0]).argmax(axis=-1)
    assert (likeliest == ENDING.bos_id).any(), "the start token never won"
    decoded = run.decode(loud, source, LENGTHS, LIMITS)
    assert not np.any(np.asarray(decoded.tokens) == ENDING.bos_id)
    assert np.isfinite(decoded.log_probs).all()


def test_log_probabilities_are_those_of_the_tokens_that_can_be_emitted(run, model):
    decoded = run.decode(model, draw_source(), LENGTHS, LIMITS)
    written = np.arange(decoded.tokens.shape[1])[None] < np.asarray(decoded.lengths)[:, None]
    log_probs = np.asarray(decoded.log_probs)[written]
    # The likeliest of 5 tokens, all but the start token, has at least a fifth.
    assert (log_probs <= 0).all()
    assert (log_probs >= -np.log(5) - TOLERANCE).all()


def test_cross_attention_is_that_of_teacher_forcing_over_what_was_decoded(run, model):
    source = draw_source()
    decoded = run.decode(model, source, LENGTHS, LIMITS)
    weights = np.asarray(run.cross_attention(model, source, LENGTHS, *decoded[:2]))
    size = decoded.tokens.shape[1]
    assert weights.shape == (BATCH, 2, 2, size, NARROW)
    inputs = np.full((BATCH, size), model.config.bos_id, np.int32)
    inputs[:, 1:] = decoded.tokens[:, :-1]
    # Every position is real here: the causal mask alone hides what comes later.
    expected = run.forward(model, source, LENGTHS, inputs, np.full(BATCH, size, np.int32))[1]
    for row, length in enumerate(decoded.lengths):
        own = np.s_[row, :, :, :length]
        np.testing.assert_allclose(expected[own], weights[own], atol=TOLERANCE)


def test_cross_attention_sums_to_one_over_the_real_source(run, model):
    source = draw_source()
    decoded = run.decode(model, source, LENGTHS, LIMITS)
    weights = np.asarray(run.cross_attention(model, source, LENGTHS, *decoded[:2]))
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=TOLERANCE)
    for row, length in enumerate(LENGTHS):
        assert not weights[row, ..., length:].any()


def test_cross_attention_of_an_empty_target_is_no_nan(run, model):
    nothing = run.decode(model, draw_source(), LENGTHS, np.zeros(BATCH, np.int32))
    weights = run.cross_attention(model, draw_source(), LENGTHS, *nothing[:2])
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("num_steps", [0, 1])
def test_what_is_packed_unpacks_to_the_same_state(run, ending, num_steps):
    state = run.start(ending, draw_source(), LENGTHS, LIMITS)
    if num_steps:
        state = run.advance(ending, state, num_steps)
    again = unpack(ending, pack(state))
    assert jax.tree.structure(again) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, state, again)


def test_every_packed_array_has_a_row_for_each_row_and_the_shape_that_was_promised(run, model):
    packed = pack(run.start(model, draw_source(), LENGTHS, LIMITS))
    promised = packed_shapes(model.config, NARROW)
    assert packed.keys() == promised.keys()
    for name, array in packed.items():
        assert array.shape == (BATCH, *promised[name].shape[1:])
        assert promised[name].shape[0] == 1
        assert array.dtype == promised[name].dtype

"""Packed decoders beside the models that they are made of."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import decoding, generation, packed_encoder_decoder
from models.beam_search import beam_search
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.packed import pack_decoder
from models.packed_blocks import narrowed
from tests.models.as_trained import as_trained
from tests.models.small_decoder import LENGTHS, TOLERANCE, WIDER

BATCH, SOURCE_SIZE, PART = 6, 9, 3
ENDING = EncoderDecoderConfig(
    source_vocab_size=9,
    target_vocab_size=6,
    bos_id=5,
    eos_id=4,
    embed_dim=24,
    num_heads=3,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_source_len=SOURCE_SIZE,
    max_target_len=7,
    source_order="end",
)
CONFIGS = {
    "with an end token": ENDING,
    "one block on either side": dataclasses.replace(
        ENDING,
        eos_id=None,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_target_len=SOURCE_SIZE,
        source_order="start",
    ),
}
SOURCE = np.random.default_rng(0).integers(0, 9, (BATCH, SOURCE_SIZE), dtype=np.int32)
SOURCE_LENGTHS = np.array([9, 1, 5, 9, 3, 7], np.int32)
LIMITS = np.full(BATCH, 99, np.int32)


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request):
    """An encoder-decoder, and the same packed."""
    model = as_trained(EncoderDecoder(CONFIGS[request.param], rngs=nnx.Rngs(0)))
    return model, packed_encoder_decoder.pack(model)


@pytest.fixture(scope="module")
def decoders(small_decoder):
    """A causal decoder, and the same packed."""
    model = as_trained(nnx.clone(small_decoder))
    return model, pack_decoder(model)


def both(function, pair, *arrays):
    return (jax.jit(function)(model, *arrays) for model in pair)


def assert_same(expected, got):
    """Whole numbers are equal, others nearly."""

    def compare(one, other):
        if np.issubdtype(one.dtype, np.floating):
            np.testing.assert_allclose(one, other, rtol=0, atol=2 * TOLERANCE)
        else:
            np.testing.assert_array_equal(one, other)

    jax.tree.map(compare, expected, got)


def test_the_same_is_decoded(pair):
    expected, got = both(decoding.decode, pair, SOURCE, SOURCE_LENGTHS, LIMITS)
    assert len({tuple(row) for row in np.asarray(expected.tokens)}) > 3, "all rows alike"
    assert_same(expected, got)


def test_the_same_is_decoded_in_parts_by_rows_that_change_places(pair):
    _, packed = pair
    whole = jax.jit(decoding.decode)(packed, SOURCE, SOURCE_LENGTHS, LIMITS)
    state = jax.jit(decoding.start)(packed, SOURCE, SOURCE_LENGTHS, LIMITS)
    advance = jax.jit(partial(decoding.advance, num_steps=PART))
    for _ in range(-(-SOURCE_SIZE // PART)):
        arrays = {name: jnp.flip(array, 0) for name, array in decoding.pack(state).items()}
        state = advance(packed, decoding.unpack(packed, arrays))
    assert not np.any(state.is_running)
    assert_same(jax.tree.map(lambda rows: rows[::-1], whole), state.decoded)


def test_packed_states_have_the_shapes_that_are_told_without_a_model(pair):
    model, packed = pair
    one = (array[:1] for array in (SOURCE, SOURCE_LENGTHS, LIMITS))
    started = jax.jit(lambda *arrays: decoding.pack(decoding.start(*arrays)))(packed, *one)
    told = decoding.packed_shapes(model.config, SOURCE_SIZE)
    assert {name: (array.shape, array.dtype) for name, array in started.items()} == {
        name: (shape.shape, shape.dtype) for name, shape in told.items()
    }


def test_the_same_beams_are_found(pair):
    search = partial(beam_search, max_beams=3)
    beams = np.array([1, 2, 3, 3, 3, 2], np.int32)
    expected, got = both(search, pair, SOURCE, SOURCE_LENGTHS, LIMITS, beams)
    assert_same(expected, got)


def test_the_decoder_looks_where_it_did(pair):
    target = np.random.default_rng(2).integers(0, 4, (BATCH, 5), dtype=np.int32)
    lengths = np.array([5, 1, 3, 5, 2, 4], np.int32)
    expected, got = both(decoding.cross_attention, pair, SOURCE, SOURCE_LENGTHS, target, lengths)
    written = np.arange(5)[None] < lengths[:, None]
    expected, got = (np.moveaxis(np.asarray(weights), 3, 1)[written] for weights in (expected, got))
    assert_same(expected, got)


def test_the_same_is_generated(decoders, prompts):
    limits = np.full(len(LENGTHS), WIDER, np.int32)
    how = generation.Sampling(
        jnp.array([0.0, 1.0, 0.7]), jnp.array([1.0, 1.0, 0.8]), jnp.arange(3, dtype=jnp.uint32)
    )
    expected, got = both(generation.generate, decoders, prompts, LENGTHS, limits, how)
    assert len(np.unique(expected.tokens)) > 3, "all tokens are the same"
    assert_same(expected, got)


def test_the_same_is_generated_in_parts(decoders, prompts):
    _, packed = decoders
    how = generation.Sampling(jnp.zeros(3), jnp.ones(3), jnp.arange(3, dtype=jnp.uint32))
    limits = np.full(len(LENGTHS), PART * 2, np.int32)
    whole = jax.jit(generation.generate)(packed, prompts, LENGTHS, limits, how)
    state = jax.jit(generation.start)(packed, prompts, LENGTHS)
    advance = jax.jit(partial(generation.advance, num_steps=PART))
    parts = []
    for _ in range(2):
        state = generation.unpack(packed, generation.pack(state))
        state, part = advance(packed, state, how)
        parts.append(part)
    got = jax.tree.map(lambda *rows: jnp.concatenate(rows, axis=1), *parts)
    assert_same(jax.tree.map(lambda rows: rows[:, : 2 * PART], whole), got)


def test_a_prompt_scores_the_same(decoders, prompts):
    expected, got = both(generation.score, decoders, prompts, LENGTHS)
    real = np.arange(WIDER)[None] < LENGTHS[:, None]
    assert_same(np.asarray(expected)[real], np.asarray(got)[real])


@pytest.mark.parametrize("kind", ["pair", "decoders"])
def test_packed_parameters_are_where_the_plain_ones_were(kind, small_decoder):
    pack, model = pack_decoder, small_decoder
    if kind == "pair":
        pack, model = packed_encoder_decoder.pack, EncoderDecoder(ENDING, rngs=nnx.Rngs(0))
    device = jax.devices()[3]
    graph, state = nnx.split(model)
    packed = pack(nnx.merge(graph, jax.device_put(state, device)))
    assert {leaf.device for leaf in jax.tree.leaves(packed)} == {device}


def test_matrices_of_half_the_width_answer_nearly_alike(pair, decoders, prompts):
    source = SOURCE, SOURCE_LENGTHS
    pairs = (((*pair[1:],), source, "encode"), ((*decoders[1:],), (prompts, LENGTHS), "read"))
    for (packed,), arrays, name in pairs:
        half = narrowed(packed, jnp.bfloat16)
        run = jax.jit(lambda packed, *arrays, name=name: getattr(packed, name)(*arrays))
        found = run(half, *arrays)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}
        real = np.arange(arrays[0].shape[1])[None] < np.asarray(arrays[1])[:, None]
        errors = []
        for one, other in zip(*map(jax.tree.leaves, (run(packed, *arrays), found)), strict=True):
            apart = np.abs(np.asarray(one) - np.asarray(other))
            # Positions are the last axis but one, behind the heads where there are any.
            rows = np.moveaxis(apart, -2, 1)[real]
            errors.append(rows.mean() / np.abs(one).mean())
        # Each operand is off by up to 1 part in 512; the first block looks up what it reads.
        assert 0 < max(errors) < 0.02

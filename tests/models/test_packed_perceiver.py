import dataclasses
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import packed_perceiver, packed_reading
from models.checkpoint import load_model
from models.packed_blocks import narrowed
from models.packed_perceiver import (
    SHORTEST_TILE,
    attention,
    behind_reading,
    encode,
    encode_part,
    pack,
    read_back,
    reconstruct,
)
from models.packed_reading import TILE, is_folded, joined
from models.perceiver import PerceiverAutoencoder, PerceiverConfig
from models.products import multiplied_in
from tests.jaxprs import products_of

SHIPPED = Path(__file__).parents[2] / "checkpoints" / "perceiver" / "1"
# The same sums in another order.
ATOL = 1e-5
# The log-probability of a symbol follows from logits of about 30 in the shipped model.
SHIPPED_ATOL = 5e-5
CONFIG = PerceiverConfig(
    vocab_size=7, num_latents=4, embed_dim=24, num_heads=3, num_layers=2, max_input_len=2048
)
# Of lengths at which nothing is folded, all is, and there are several tiles, the last one short.
SHORT, FOLDED, LONG = 3, 16, 2 * TILE + 100
SIZES = (SHORT, FOLDED, LONG)
BATCH = 4


def lengths_of(size):
    return np.array([size, 1, size // 2 + 1, size - 1], np.int32)


def draw(size):
    """Random symbols and the mask, and as many vectors, with garbage behind each row's length."""
    generator = np.random.default_rng(size)
    tokens = generator.integers(0, CONFIG.vocab_size + 1, (BATCH, size), dtype=np.int32)
    return tokens, generator.standard_normal((BATCH, size, CONFIG.embed_dim), dtype=np.float32)


@pytest.fixture(scope="module")
def model():
    """A model whose norms have scales of their own, as training leaves them."""
    model = PerceiverAutoencoder(CONFIG, rngs=nnx.Rngs(0))
    generator = np.random.default_rng(0)

    def scaled(leaf):
        return leaf * jnp.asarray(generator.uniform(0.5, 1.5, leaf.shape).astype(np.float32))

    nnx.update(model, jax.tree.map(scaled, nnx.state(model)))
    return model


@pytest.fixture(scope="module")
def packed(model):
    return pack(model)


@pytest.fixture(scope="module")
def plain():
    """What the plain model says, compiled once a shape."""

    def run(model, tokens, vectors, lengths):
        summary = model.encode(tokens, lengths)
        of_vectors = model.encode_vectors(vectors, lengths).latents
        return summary, of_vectors, model.reconstruct(tokens, lengths)

    return jax.jit(run)


@pytest.fixture(scope="module")
def fast():
    def run(packed, tokens, vectors, lengths):
        return (
            (encode(packed, tokens, lengths), attention(packed, tokens, lengths)),
            encode(packed, vectors, lengths),
            reconstruct(packed, tokens, lengths),
        )

    return jax.jit(run)


def assert_close(found, expected, atol=ATOL):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def assert_same_text(found, expected, lengths, atol):
    """The same as far as the rows go."""
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(found.tokens[row, :length], expected.tokens[row, :length])
        assert_close(found.log_probs[row, :length], expected.log_probs[row, :length], atol)


def test_these_sizes_are_read_in_every_way():
    folds = [
        is_folded(CONFIG.num_latents, size, CONFIG.embed_dim, CONFIG.num_heads) for size in SIZES
    ]
    assert folds == [False, True, True]
    assert LONG % TILE
    assert LONG % SHORTEST_TILE


@pytest.mark.parametrize("size", SIZES)
def test_a_packed_perceiver_gives_what_the_plain_one_does(model, packed, plain, fast, size):
    tokens, vectors = draw(size)
    lengths = lengths_of(size)
    (latents, weights), of_vectors, back = fast(packed, tokens, vectors, lengths)
    expected, expected_of_vectors, expected_back = plain(model, tokens, vectors, lengths)
    assert np.abs(expected.latents).max() > 1
    assert_close(latents, expected.latents)
    assert_close(weights, expected.weights)
    assert_close(of_vectors, expected_of_vectors)
    assert_close(back.latents, expected_back.latents)
    assert_same_text(back, expected_back, lengths, ATOL)


def test_inputs_in_tiles_that_are_not_folded_are_read_too(model, packed, plain, monkeypatch):
    """Where heads are many, folding costs more however long the input is."""
    size = 40
    tokens, vectors = draw(size)
    lengths = lengths_of(size)
    monkeypatch.setattr(packed_reading, "TILE", 16)
    monkeypatch.setattr(packed_perceiver, "TILE", 16)
    monkeypatch.setattr(packed_reading, "is_folded", lambda *_: False)
    latents = jax.jit(encode)(packed, tokens, lengths)
    assert_close(latents, plain(model, tokens, vectors, lengths)[0].latents)


@pytest.mark.parametrize("size", [LONG, 40])
def test_what_is_read_in_parts_and_joined_is_what_is_read_at_once(packed, fast, size):
    """Of a text and of vectors, in two parts that differ in length, of which one is not folded."""
    lengths = np.full(BATCH, size, np.int32)
    bounds = [0, size - SHORT, size]
    read = jax.jit(encode_part)

    (latents, _), of_vectors, _ = fast(packed, *draw(size), lengths)
    for source, expected in zip(draw(size), (latents, of_vectors), strict=True):
        parts = [
            read(
                packed,
                source[:, start:end],
                *(np.full_like(lengths, n) for n in (end - start, start)),
                lengths,
            )
            for start, end in itertools.pairwise(bounds)
        ]
        sums = [np.stack(arrays) for arrays in zip(*parts, strict=True)]
        rows = [joined(*(array[:, row] for array in sums)) for row in range(BATCH)]
        assert_close(jax.jit(behind_reading)(packed, np.stack(rows), lengths), expected)


def test_a_part_that_outweighs_all_others_is_what_is_read():
    read = np.array([[[1.0, 2.0]], [[3.0, 4.0]]], np.float32)
    totals = np.ones((2, 1, 2), np.float32)
    largest = np.array([[[1e4, -1e4]], [[-1e4, 1e4]]], np.float32)
    np.testing.assert_array_equal(joined(read, largest, totals), [[1.0, 4.0]])
    np.testing.assert_allclose(joined(read, largest * 0, totals * [[[1]], [[3]]]), [[2.5, 3.5]])


def test_a_part_of_a_text_is_read_back_as_all_of_it_is(model, packed, plain):
    tokens, vectors = draw(LONG)
    lengths = lengths_of(LONG)
    expected = plain(model, tokens, vectors, lengths)[2]
    start, count = TILE + 7, 90
    positions = np.zeros((1, count + 5), np.int32)
    positions[:, :count] = np.arange(start, start + count)
    counts = np.full(BATCH, count, np.int32)
    back, log_probs = jax.jit(read_back)(packed, positions, counts, lengths, expected.latents)
    for row, length in enumerate(lengths):
        real = max(0, min(count, length - start))
        np.testing.assert_array_equal(back[row, :real], expected.tokens[row, start : start + real])
        assert_close(log_probs[row, :real], expected.log_probs[row, start : start + real])
    assert max(lengths) >= start + count


def test_padding_is_never_read(packed, fast):
    tokens, vectors = draw(LONG)
    lengths = lengths_of(LONG)
    is_real = np.arange(LONG)[None] < lengths[:, None]
    others = np.where(is_real, tokens, 3), np.where(is_real[..., None], vectors, 9)
    for found, expected in zip(
        jax.tree.leaves(fast(packed, *others, lengths)[:2]),
        jax.tree.leaves(fast(packed, tokens, vectors, lengths)[:2]),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def test_tiles_of_padding_do_not_change_an_answer(packed, fast):
    """A text is read alike whatever else shares its batch."""
    tokens, vectors = draw(LONG)
    lengths = np.array([SHORT, 1, 2, SHORT], np.int32)
    among_long_ones = np.array([SHORT, LONG, LONG, SHORT], np.int32)
    alone = fast(packed, tokens, vectors, lengths)
    together = fast(packed, tokens, vectors, among_long_ones)
    for row in (0, 3):
        assert_close(alone[0][0][row], together[0][0][row])
        assert_close(alone[1][row], together[1][row])


@pytest.mark.parametrize(
    ("num_latents", "width", "num_heads", "first"),
    [(64, 256, 4, 257), (64, 256, 1, 65), (8, 16, 2, 17), (64, 256, 5, None), (64, 256, 8, None)],
)
def test_folding_begins_where_it_takes_fewer_multiplications(num_latents, width, num_heads, first):
    def cost(size, *, folds):
        keys_and_values, reading = 2 * size * width**2, 2 * num_latents * size * width
        if folds:
            return 2 * num_latents * width**2 + num_heads * reading
        return keys_and_values + reading

    chosen = []
    for size in range(1, 2000):
        folds = is_folded(num_latents, size, width, num_heads)
        assert folds == (cost(size, folds=True) < cost(size, folds=False))
        if folds:
            chosen.append(size)
    assert (chosen[0] if chosen else None) == first


def test_a_packed_perceiver_is_where_the_plain_one_was(model):
    device = jax.devices()[3]
    graph, state = nnx.split(model)
    moved = pack(nnx.merge(graph, jax.device_put(state, device)))
    assert {leaf.device for leaf in jax.tree.leaves(moved)} == {device}


def test_matrices_of_half_the_width_answer_nearly_alike(packed, fast):
    narrow = narrowed(packed, jnp.bfloat16)
    assert narrow.vectors is packed.vectors
    tokens, vectors = draw(LONG)
    lengths = lengths_of(LONG)
    expected = fast(packed, tokens, vectors, lengths)
    found = fast(narrow, tokens, vectors, lengths)
    for values, others in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert values.dtype in (jnp.float32, jnp.int32)
        if values.dtype == jnp.float32 and others.ndim == 3:
            # Each operand is off by up to 1 part in 512, in a dozen steps.
            difference = np.asarray(values) - np.asarray(others)
            assert 0 < np.sqrt(np.mean(difference**2)) < 0.05


@pytest.mark.parametrize(("size", "is_narrow"), [(SHORT, False), (FOLDED, True)])
def test_inputs_are_multiplied_narrowly_where_a_matrix_is_folded_and_not_in_attention(
    packed, size, is_narrow
):
    assert is_folded(CONFIG.num_latents, size, CONFIG.embed_dim, CONFIG.num_heads) == is_narrow
    tokens, _ = draw(size)
    with multiplied_in("bfloat16"):
        jaxpr = jax.make_jaxpr(attention)(narrowed(packed, "bfloat16"), tokens, lengths_of(size))
    *_, scores = products_of(jaxpr.jaxpr)
    width = "bfloat16" if is_narrow else "float32"
    assert {operand.aval.dtype.name for operand in scores.invars} == {width}
    assert scores.outvars[0].aval.size == BATCH * CONFIG.num_heads * CONFIG.num_latents * size


def test_the_shipped_perceiver_answers_alike_when_it_is_packed():
    model, size = load_model(SHIPPED).model, TILE + 88
    tokens = np.random.default_rng(0).integers(0, 28, (1, size), dtype=np.int32)
    lengths = np.array([size], np.int32)
    expected = jax.jit(PerceiverAutoencoder.reconstruct)(model, tokens, lengths)
    found = jax.jit(reconstruct)(pack(model), tokens, lengths)
    assert_close(found.latents, expected.latents)
    assert_same_text(found, expected, lengths, SHIPPED_ATOL)


def test_every_parameter_matters(packed, fast):
    """Nothing is packed that no pass reads."""
    tokens, vectors = draw(FOLDED)
    lengths = lengths_of(FOLDED)
    expected = jax.tree.leaves(fast(packed, tokens, vectors, lengths))
    for name in (field.name for field in dataclasses.fields(packed)):
        if name in ("config", "shape"):
            continue
        part = jax.tree.map(lambda leaf: leaf * 1.5, getattr(packed, name))
        changed = dataclasses.replace(packed, **{name: part})
        found = jax.tree.leaves(fast(changed, tokens, vectors, lengths))
        assert any((a != b).any() for a, b in zip(found, expected, strict=True)), name

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from models.packed import logits_at, logits_at_once, pack, symbol_logits
from models.packed_blocks import UNIT_WIDTH, PackedFeedForward, Shape, fed_forward, narrowed
from tests.models.as_trained import as_trained

# The same sums in another order.
ATOL = 1e-5
BATCH, SIZE, ASKED = 5, 12, 4


@pytest.fixture(scope="module", params=[1, 3], ids="{} blocks".format)
def model(request):
    """A model whose norms have scales of their own, as training leaves them."""
    config = TransformerConfig(
        vocab_size=7, embed_dim=24, num_heads=3, num_layers=request.param, max_seq_len=SIZE
    )
    return as_trained(MaskedLanguageModel(config, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(1)
    tokens = generator.integers(0, 8, (BATCH, SIZE), dtype=np.int32)
    lengths = np.array([SIZE, 1, 2, 7, SIZE], np.int32)
    positions = generator.integers(0, lengths[:, None], (BATCH, ASKED), dtype=np.int32)
    return tuple(map(jnp.asarray, (tokens, lengths, positions)))


def real(values, lengths):
    return np.asarray(values)[np.arange(SIZE)[None] < np.asarray(lengths)[:, None]]


def test_a_packed_model_gives_the_logits_of_the_plain_one(model, rows):
    tokens, lengths, _ = rows
    plain, packed = model(tokens, lengths), symbol_logits(pack(model), tokens, lengths)
    assert np.abs(real(plain, lengths)).max() > 1
    np.testing.assert_allclose(real(packed, lengths), real(plain, lengths), rtol=0, atol=ATOL)


@pytest.mark.parametrize("ask", [logits_at, logits_at_once])
def test_what_is_asked_at_some_positions_is_what_all_of_them_would_say(model, rows, ask):
    tokens, lengths, positions = rows
    everywhere = np.asarray(model(tokens, lengths))
    expected = np.take_along_axis(everywhere, np.asarray(positions)[:, :, None], axis=1)
    found = ask(pack(model), tokens, lengths, positions)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("counts", [(1, 1, 1, 0, 1), (ASKED, 1, 2, 1, 3)])
def test_rows_may_ask_for_fewer_positions_than_there_is_room_for(model, rows, counts):
    tokens, lengths, positions = rows
    packed, asked = pack(model), np.arange(ASKED)[None] < np.array(counts)[:, None]
    some = logits_at(packed, tokens, lengths, jnp.where(asked, positions, -1))
    every = logits_at(packed, tokens, lengths, positions)
    assert np.isfinite(some).all()
    np.testing.assert_allclose(some[asked], every[asked], rtol=0, atol=ATOL)


def test_padding_is_never_read(model, rows):
    tokens, lengths, positions = rows
    other = jnp.where(jnp.arange(SIZE)[None] < lengths[:, None], tokens, 3)
    packed = pack(model)
    np.testing.assert_array_equal(
        logits_at(packed, other, lengths, positions), logits_at(packed, tokens, lengths, positions)
    )


def test_a_packed_model_is_where_the_plain_one_was(model):
    device = jax.devices()[3]
    graph, state = nnx.split(model)
    packed = pack(nnx.merge(graph, jax.device_put(state, device)))
    assert {leaf.device for leaf in jax.tree.leaves(packed)} == {device}


def test_narrow_feed_forwards_have_whole_tiles_of_which_nothing_is_seen():
    width, inner = 8, UNIT_WIDTH + 3
    gate, up, x = (
        jnp.asarray(np.random.default_rng(index).normal(size=shape), jnp.float32)
        for index, shape in enumerate([(width, inner), (width, inner), (1, 5, width)])
    )
    wide = PackedFeedForward(gate=gate, up=up, down=up.T)
    packed = narrowed(wide, jnp.bfloat16)
    assert [m.shape for m in jax.tree.leaves(packed)] == [(width, 2 * UNIT_WIDTH)] * 2 + [
        (2 * UNIT_WIDTH, width)
    ]
    as_wide = jax.tree.map(lambda matrix: matrix.astype(jnp.bfloat16), wide)
    shape = Shape(num_heads=1, epsilon=1e-6)
    expected, found = (fed_forward(mlp, x, shape) for mlp in (as_wide, packed))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_model_that_is_not_narrowed_is_left_alone(model):
    packed = pack(model)
    assert narrowed(packed, jnp.float32) is packed


def test_matrices_of_half_the_width_answer_nearly_alike(model, rows):
    wide, (tokens, lengths, positions) = pack(model), rows
    packed = narrowed(wide, jnp.bfloat16)
    assert packed.embedding is wide.embedding
    assert packed.blocks[0].mlp.gate.dtype == packed.unembedding.dtype == jnp.bfloat16
    exact, found = (symbol_logits(each, tokens, lengths) for each in (wide, packed))
    assert found.dtype == jnp.float32
    real = np.arange(tokens.shape[1])[None] < np.asarray(lengths)[:, None]
    apart = np.abs(np.asarray(found) - np.asarray(exact))[real]
    # Each operand is off by up to 1 part in 512, and there are thousands of them.
    assert 0 < apart.mean() < 0.01 * np.abs(np.asarray(exact)[real]).mean()
    expected = np.take_along_axis(np.asarray(found), np.asarray(positions)[:, :, None], axis=1)
    asked = logits_at(packed, tokens, lengths, positions)
    np.testing.assert_allclose(asked, expected, atol=0.02 * np.abs(expected).max())

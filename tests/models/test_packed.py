import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from models.packed import logits_at, logits_at_once, pack, symbol_logits
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


def test_in_half_the_width_everything_but_the_softmax_is(model, rows):
    packed = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), pack(model))
    tokens, lengths, positions = rows
    with jax.numpy_dtype_promotion("standard"):
        found = logits_at(packed, tokens, lengths, positions)
        everywhere = symbol_logits(packed, tokens, lengths)
    assert found.dtype == everywhere.dtype == jnp.bfloat16
    expected = np.take_along_axis(
        np.asarray(everywhere, np.float32), np.asarray(positions)[:, :, None], axis=1
    )
    # Rounding in bfloat16 is 1 part in 256, and differs with the shape of a product.
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=0, atol=0.5)

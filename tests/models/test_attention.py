import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.attention import KeyValues, MultiHeadAttention, attend, empty_cache, write_cache
from models.products import multiplied_in
from tests.jaxprs import products_of
from training.step import jitted

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
BATCH, QUERIES, KEYS, HEADS, HEAD_DIM = 2, 3, 6, 2, 4
EMBED_DIM = HEADS * HEAD_DIM

compiled_attend = jax.jit(attend)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.fixture(scope="module")
def queries():
    return normal(0, BATCH, HEADS, QUERIES, HEAD_DIM)


@pytest.fixture(scope="module")
def memory():
    shape = (BATCH, HEADS, KEYS, HEAD_DIM)
    return KeyValues(normal(1, *shape), normal(2, *shape))


@pytest.fixture(scope="module")
def self_attention():
    module = MultiHeadAttention(EMBED_DIM, HEADS, rngs=nnx.Rngs(0))

    def forward(module, x, mask):
        return module.attend(x, module.project(x), mask)

    return jitted(module, forward)


def test_weights_sum_to_one_over_the_source(queries, memory):
    mask = jnp.arange(KEYS)[None, None] < jnp.array([6, 4])[:, None, None]
    weights = compiled_attend(queries, memory, mask)[1]
    assert weights.shape == (BATCH, HEADS, QUERIES, KEYS)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=TOLERANCE)


def test_masked_keys_get_no_weight_at_all(queries, memory):
    mask = jnp.arange(KEYS)[None, None] < jnp.array([6, 4])[:, None, None]
    weights = np.asarray(compiled_attend(queries, memory, mask)[1])
    assert (weights[1, :, :, 4:] == 0).all()
    assert (weights[0] > 0).all()
    assert (weights[1, :, :, :4] > 0).all()


def test_what_a_masked_key_holds_changes_nothing(queries, memory):
    mask = jnp.broadcast_to(jnp.arange(KEYS) < 4, (BATCH, 1, KEYS))
    other = KeyValues(*(part.at[:, :, 4:].set(1e6) for part in memory))
    expected = compiled_attend(queries, memory, mask)
    got = compiled_attend(queries, other, mask)
    jax.tree.map(np.testing.assert_array_equal, expected, got)


def test_a_fully_masked_row_gets_uniform_weights_and_no_nan(queries, memory):
    mask = jnp.zeros((BATCH, 1, KEYS), bool)
    values, weights = compiled_attend(queries, memory, mask)
    np.testing.assert_allclose(weights, 1 / KEYS, rtol=TOLERANCE)
    assert np.isfinite(values).all()


def test_attention_is_the_textbook_formula(queries, memory):
    values, weights = compiled_attend(queries, memory, jnp.ones((BATCH, 1, KEYS), bool))
    for row in range(BATCH):
        for head in range(HEADS):
            keys = np.asarray(memory.keys[row, head])
            scores = np.exp(np.asarray(queries[row, head]) @ keys.T)
            expected = scores / scores.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(weights[row, head], expected, atol=TOLERANCE)
            read = expected @ np.asarray(memory.values[row, head])
            np.testing.assert_allclose(values[row, head], read, atol=TOLERANCE)


def test_attention_stays_float32_where_its_matrices_are_multiplied_in_less():
    """Keys and values are sums, and so is what is read; only what goes into a matrix is rounded."""
    attention = MultiHeadAttention(EMBED_DIM, HEADS, rngs=nnx.Rngs(0))
    x = normal(5, BATCH, QUERIES, EMBED_DIM)
    mask = jnp.ones((BATCH, 1, QUERIES), bool)

    def read(attention, x):
        memory = attention.project(x)
        return memory, *attention.attend(x, memory, mask)

    with multiplied_in("bfloat16"):
        jaxpr = jax.make_jaxpr(jitted(attention, read))(x)
    widths = [
        {operand.aval.dtype.name for operand in equation.invars}
        for equation in products_of(jaxpr.jaxpr)
    ]
    # Keys, values, queries; scores, what is read; and the way out.
    assert widths == [{"bfloat16"}] * 3 + [{"float32"}] * 2 + [{"bfloat16"}]


def test_self_attention_without_positions_is_permutation_equivariant(self_attention):
    x = normal(3, BATCH, KEYS, EMBED_DIM)
    everything = jnp.ones((1, 1, KEYS), bool)
    order = np.array([3, 0, 5, 1, 4, 2])
    expected, weights = self_attention(x, everything)
    got, permuted_weights = self_attention(x[:, order], everything)
    np.testing.assert_allclose(got, expected[:, order], atol=TOLERANCE)
    np.testing.assert_allclose(permuted_weights, weights[:, :, order][..., order], atol=TOLERANCE)


def test_scores_are_scaled_by_the_root_of_the_head_width_and_the_query_scale():
    module = MultiHeadAttention(EMBED_DIM, HEADS, query_scale=3.0, rngs=nnx.Rngs(0))
    assert module.scale == pytest.approx(3 / HEAD_DIM**0.5)


def test_projections_keep_the_scale_of_their_input():
    """Lecun initialisation over the right axes: unit variance in gives unit variance out."""
    module = MultiHeadAttention(64, 4, rngs=nnx.Rngs(0))
    x = normal(4, 2, 256, 64)
    project = jitted(module, lambda module, x: (module.query_proj(x), *module.project(x)))
    for projected in project(x):
        assert np.std(projected) == pytest.approx(1, rel=0.1)
    out = jitted(module, lambda module, x: module.out_proj(x))
    assert np.std(out(x.reshape(2, 4, 256, 16))) == pytest.approx(1, rel=0.1)


def test_a_cache_holds_each_row_at_its_own_position_and_keeps_the_rest(memory):
    cache = empty_cache(BATCH, KEYS, HEADS, HEAD_DIM)
    first = KeyValues(*(part[:, :, :1] for part in memory))
    second = KeyValues(*(part[:, :, 1:2] for part in memory))
    cache = write_cache(cache, first, jnp.array([0, 2]))
    cache = write_cache(cache, second, jnp.array([1, 3]))
    for row, at in ((0, 0), (1, 2)):
        np.testing.assert_array_equal(cache.keys[row, :, at : at + 2], memory.keys[row, :, :2])
        np.testing.assert_array_equal(cache.values[row, :, at : at + 2], memory.values[row, :, :2])
        untouched = np.delete(np.asarray(cache.keys[row]), [at, at + 1], axis=1)
        assert (untouched == 0).all()


def test_a_position_behind_the_end_of_a_cache_is_stored_nowhere(memory):
    cache = empty_cache(BATCH, KEYS, HEADS, HEAD_DIM)
    new = KeyValues(*(part[:, :, :1] for part in memory))
    written = write_cache(cache, new, jnp.array([KEYS, KEYS - 1]))
    assert not np.any(written.keys[0])
    np.testing.assert_array_equal(written.keys[1, :, KEYS - 1], memory.keys[1, :, 0])

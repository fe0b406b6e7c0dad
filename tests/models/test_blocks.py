import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.blocks import (
    BlockConfig,
    DecoderBlock,
    FeedForward,
    TransformerBlock,
    TransformerConfig,
    embedding,
    gated,
    require_positive,
)
from models.checkpoint import flatten, num_params
from models.encoder_decoder import EncoderDecoderConfig
from models.perceiver import PerceiverConfig
from models.wirings import WIRINGS
from training.step import jitted

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
CONFIG = BlockConfig(embed_dim=12, num_heads=3)
BATCH, SIZE = 2, 5


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def abstract(wiring, config):
    """A model's shapes, without its numbers."""
    return nnx.eval_shape(lambda: WIRINGS[wiring].model(config, rngs=nnx.Rngs(0)))


BOOK_MODELS = {
    "encoder": TransformerConfig.book(28),
    "decoder": TransformerConfig.book(28),
    "encoder-decoder": EncoderDecoderConfig.book(17, 16),
    "perceiver": PerceiverConfig.book(28),
}


def mlp_size(d):
    return 3 * d * round(8 * d / 3)


def attention_size(d):
    return 4 * d * d


def block_size(d):
    return attention_size(d) + mlp_size(d) + 2 * d


@pytest.mark.parametrize(("embed_dim", "mlp_dim"), [(128, 341), (256, 683), (3, 8), (16, 43)])
def test_the_feed_forward_is_eight_thirds_as_wide_as_the_block(embed_dim, mlp_dim):
    assert BlockConfig(embed_dim=embed_dim, num_heads=1).mlp_dim == mlp_dim
    assert mlp_dim == round(8 * embed_dim / 3)


@pytest.mark.parametrize("wiring", ["encoder", "decoder"])
def test_the_book_stack_has_exactly_the_parameters_of_the_recipe(wiring):
    d, tokens, positions = 128, 28 + 1, 64
    derived = 4 * block_size(d) + (tokens + positions) * d + d
    assert num_params(abstract(wiring, TransformerConfig.book(28))) == derived == 798_976


def test_the_book_encoder_decoder_has_exactly_the_parameters_of_the_recipe():
    d, vocab, positions = 128, 17, 12
    decoder_block = 2 * attention_size(d) + mlp_size(d) + 3 * d
    embeddings = 2 * (vocab + positions) * d
    final_norms, head = 2 * d, vocab * d
    derived = block_size(d) + decoder_block + embeddings + final_norms + head
    config = EncoderDecoderConfig.book(vocab, vocab - 1)
    assert num_params(abstract("encoder-decoder", config)) == derived == 468_992


def test_the_book_perceiver_has_exactly_the_parameters_of_the_recipe():
    d, latents, vocab = 256, 64, 28
    encoder = latents * d + d + attention_size(d) + 2 * block_size(d) + d
    reconstruction = d + attention_size(d) + d + mlp_size(d) + d + d * vocab
    derived = (vocab + 1) * d + encoder + reconstruction
    assert num_params(abstract("perceiver", PerceiverConfig.book(vocab))) == derived == 2_655_488


@pytest.mark.parametrize("wiring", BOOK_MODELS)
def test_nothing_has_a_bias(wiring):
    leaves = flatten(nnx.state(abstract(wiring, BOOK_MODELS[wiring]), nnx.Param))
    kinds = {name.rsplit(".", 1)[-1] for name in leaves}
    assert kinds <= {"kernel", "embedding", "scale", "latents"}


def test_embeddings_are_drawn_with_a_deviation_of_0_02():
    table = embedding(500, 64, rngs=nnx.Rngs(0)).embedding[...]
    assert np.std(table) == pytest.approx(0.02, rel=0.03)
    assert abs(np.mean(table)) < 0.001


def test_the_feed_forward_is_swiglu_of_each_position_by_itself():
    module = FeedForward(CONFIG, rngs=nnx.Rngs(0))
    x = normal(0, BATCH, SIZE, CONFIG.embed_dim)
    gate, up, down = (
        np.asarray(layer.kernel[...])
        for layer in (module.gate_proj, module.up_proj, module.down_proj)
    )
    opened = np.asarray(x) @ gate
    expected = (opened / (1 + np.exp(-opened)) * (np.asarray(x) @ up)) @ down
    got = jitted(module, FeedForward.__call__)(x)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


def test_the_gate_has_the_value_and_the_gradients_of_silu():
    """Far out too, where a sigmoid is all but 0 or 1."""
    gate = jnp.concatenate([jnp.linspace(-12, 12, 97), jnp.array([-1e4, 1e4])])[None]
    up = normal(0, *gate.shape)

    def outcome(function):
        def total(gate, up):
            found = function(gate, up)
            return found.sum(), found

        gradients, found = jax.jit(jax.grad(total, (0, 1), has_aux=True))(gate, up)
        return found, *gradients

    exact = outcome(lambda gate, up: jax.nn.silu(gate) * up)
    for expected, got in zip(exact, outcome(gated), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6, strict=True)


def rms_norm(x):
    return np.asarray(x) / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 1e-6)


def test_a_block_is_pre_norm_and_residual():
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``, put together from the parts."""
    block = TransformerBlock(CONFIG, rngs=nnx.Rngs(1))
    x = 3 * normal(1, BATCH, SIZE, CONFIG.embed_dim)
    mask = jnp.ones((1, 1, SIZE), bool)
    got = jitted(block, lambda block, x: block(x, block.project(x), mask).x)(x)

    def parts(block, normed, read):
        memory = block.attention.project(normed)
        return block.attention.attend(normed, memory, mask)[0], block.mlp(read)

    run = jitted(block, parts)
    attended = x + run(jnp.asarray(rms_norm(x)), x)[0]
    expected = attended + run(x, jnp.asarray(rms_norm(attended)))[1]
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


def test_a_block_without_positions_is_permutation_equivariant():
    block = TransformerBlock(CONFIG, rngs=nnx.Rngs(1))
    run = jitted(block, lambda block, x: block(x, block.project(x), jnp.ones((1, 1, SIZE), bool)).x)
    x, order = normal(2, BATCH, SIZE, CONFIG.embed_dim), np.array([2, 4, 0, 3, 1])
    np.testing.assert_allclose(run(x[:, order]), run(x)[:, order], atol=TOLERANCE)


def test_the_weights_of_a_decoder_block_are_those_of_its_cross_attention():
    block = DecoderBlock(CONFIG, rngs=nnx.Rngs(2))
    x, source = normal(3, BATCH, SIZE, CONFIG.embed_dim), normal(4, BATCH, 7, CONFIG.embed_dim)
    target_mask = jnp.tril(jnp.ones((1, SIZE, SIZE), bool))
    source_mask = jnp.arange(7)[None, None] < jnp.array([7, 2])[:, None, None]

    def forward(block, x, source):
        memory = block.cross_attention.project(source)
        return block(x, block.project(x), target_mask, memory, source_mask)

    weights = np.asarray(jitted(block, forward)(x, source).weights)
    assert weights.shape == (BATCH, CONFIG.num_heads, SIZE, 7)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=TOLERANCE)
    assert (weights[1, :, :, 2:] == 0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_heads": 5}, "num_heads: expected a divisor of embed_dim 128, got 5"),
        ({"embed_dim": 0}, "expected sizes of at least 1, got embed_dim=0"),
        ({"num_layers": -1}, "expected sizes of at least 1, got num_layers=-1"),
        ({"vocab_size": 0, "max_seq_len": 0}, "got vocab_size=0, max_seq_len=0"),
    ],
)
def test_an_impossible_config_is_refused_with_what_was_expected(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TransformerConfig.book(28), **changed)


def test_positive_sizes_pass():
    require_positive(num_layers=1, vocab_size=28)

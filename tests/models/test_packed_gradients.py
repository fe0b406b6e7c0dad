"""Packing inside a compiled function, as training does it: the gradients of the plain models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import packed_encoder_decoder
from models.blocks import TransformerConfig
from models.decoder import CausalLanguageModel
from models.encoder import MaskedLanguageModel
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.packed import logits_at_once, pack, pack_decoder
from tests.models.as_trained import as_trained

BATCH, SIZE, VOCAB_SIZE = 4, 10, 7
# The same sums in another order, through some twenty of them.
TOLERANCE = 2e-5
LENGTHS = jnp.array([SIZE, 1, 4, SIZE], jnp.int32)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB_SIZE, (BATCH, SIZE)), jnp.int32)
POSITIONS = jnp.array([[9, 0, 3], [0, 0, 0], [2, 3, 0], [5, 6, 7]], jnp.int32)
SIZES = {"embed_dim": 24, "num_heads": 3}
STACK = TransformerConfig(vocab_size=VOCAB_SIZE, num_layers=2, max_seq_len=SIZE, **SIZES)
PAIR = EncoderDecoderConfig(
    source_vocab_size=VOCAB_SIZE,
    target_vocab_size=VOCAB_SIZE + 1,
    bos_id=VOCAB_SIZE,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_source_len=SIZE,
    max_target_len=SIZE,
    **SIZES,
)


def real(logits):
    """Those at padding, which mean nothing, are left out."""
    return jnp.where(jnp.arange(SIZE)[None, :, None] < LENGTHS[:, None, None], logits, 0.0)


def asked(model):
    everywhere = model(TOKENS, LENGTHS)
    return jnp.take_along_axis(everywhere, POSITIONS[:, :, None], axis=1)


def asked_packed(model):
    return logits_at_once(pack(model), TOKENS, LENGTHS, POSITIONS)


def continued(model):
    return real(model(TOKENS, LENGTHS))


def continued_packed(model):
    return real(pack_decoder(model)(TOKENS, LENGTHS))


def translated(model):
    return real(model(TOKENS, LENGTHS, TOKENS, LENGTHS)[0])


def translated_packed(model):
    packed = packed_encoder_decoder.pack(model)
    memories = packed.encode(TOKENS, LENGTHS)
    return real(packed.read_target(memories, LENGTHS, TOKENS, LENGTHS)[0])


@pytest.mark.parametrize(
    ("kind", "config", "plain", "packed"),
    [
        (MaskedLanguageModel, STACK, asked, asked_packed),
        (CausalLanguageModel, STACK, continued, continued_packed),
        (EncoderDecoder, PAIR, translated, translated_packed),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_packed_model_has_the_gradients_of_the_plain_one(kind, config, plain, packed):
    graph, params = nnx.split(as_trained(kind(config, rngs=nnx.Rngs(0))), nnx.Param)

    def outcome(logits):
        def total(params):
            found = jnp.sin(logits(nnx.merge(graph, params)))
            # A different slope for each symbol, so that none of them cancel.
            return jnp.einsum("...V,V->", found, jnp.arange(1.0, 1 + found.shape[-1]))

        return jax.jit(jax.value_and_grad(total))(params)

    (expected, gradient), (found, other) = outcome(plain), outcome(packed)
    assert float(found) == pytest.approx(float(expected), rel=TOLERANCE)
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    assert len(leaves) > 20
    for (path, one), another in zip(leaves, jax.tree.leaves(other), strict=True):
        scale = float(jnp.abs(one).max())
        # Every parameter has its part in this.
        assert scale > 0, path
        np.testing.assert_allclose(another, one, rtol=0, atol=TOLERANCE * scale, err_msg=str(path))

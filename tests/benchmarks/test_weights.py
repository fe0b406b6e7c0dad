"""What peers are given means what our models mean by it."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import weights
from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from models.perceiver import PerceiverAutoencoder, PerceiverConfig


def with_scales(model):
    """Norms with scales that are not all 1, which would hide where they are left out."""
    random = np.random.default_rng(0)
    for _, norm in nnx.iter_graph(model):
        if isinstance(norm, nnx.RMSNorm):
            shape = norm.scale[...].shape
            norm.scale[...] = random.uniform(0.5, 1.5, shape).astype(np.float32)
    return model


def read_back(arrays, tmp_path):
    weights.save(tmp_path / "weights.npz", arrays)
    with np.load(tmp_path / "weights.npz", allow_pickle=False) as stored:
        return dict(stored)


def test_an_encoder_of_plain_arithmetic_gives_the_logits_of_ours(tmp_path):
    model = with_scales(MaskedLanguageModel(TransformerConfig.debug(28), rngs=nnx.Rngs(0)))
    arrays = read_back(weights.of_encoder(model), tmp_path)
    tokens = np.random.default_rng(1).integers(0, 29, (3, 20)).astype(np.int32)
    expected = model(jnp.asarray(tokens), jnp.full(3, 20))
    np.testing.assert_allclose(weights.encoder_logits(arrays, tokens), expected, atol=1e-5)


def test_a_perceiver_of_plain_arithmetic_gives_the_latents_of_ours(tmp_path):
    model = with_scales(PerceiverAutoencoder(PerceiverConfig.debug(28), rngs=nnx.Rngs(0)))
    arrays = read_back(weights.of_perceiver(model), tmp_path)
    vectors = np.random.default_rng(1).normal(size=(2, 40, 16)).astype(np.float32)
    expected = model.encode_vectors(jnp.asarray(vectors), jnp.full(2, 40)).latents
    # Sines of large angles in float32 are off by about as much as the angles are rounded.
    np.testing.assert_allclose(weights.latents(arrays, vectors), expected, atol=2e-4)


@pytest.mark.parametrize("name", ["qkv", "out", "gate", "up", "down", "mlp_norm"])
def test_every_array_of_a_block_matters(name):
    model = with_scales(MaskedLanguageModel(TransformerConfig.debug(28), rngs=nnx.Rngs(0)))
    arrays = weights.of_encoder(model)
    tokens = np.arange(20)[None]
    before = weights.encoder_logits(arrays, tokens)
    changed = {**arrays, f"1.{name}": arrays[f"1.{name}"] + 0.1}
    assert np.abs(weights.encoder_logits(changed, tokens) - before).max() > 1e-3

"""Wiring 1: a bidirectional encoder, with a head that fills masked tokens.

Axis letters: B batch, T position, N heads, D embed_dim, V vocab, L layers.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention"; the masked
objective from Devlin et al. (2018), arXiv:1810.04805, section 3.1, always replacing by the mask.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from models.blocks import Stacked, TransformerConfig, TransformerStack
from models.masks import padding_mask


class TransformerEncoder(TransformerStack):
    """Tokens that all see each other."""

    def __call__(self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Stacked:
        """The state of every position, and the attention weights of every layer.

        Positions at or past a row's length are padding: nothing reads them, and their own states
        mean nothing.
        """
        size = tokens.shape[1]
        return self.run(tokens, jnp.arange(size)[None], padding_mask(lengths, size))


class MaskedLanguageModel(nnx.Module):
    """An encoder that names the symbol behind every mask, whose token id is ``special_id``."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.encoder = TransformerEncoder(config, rngs=rngs)

    def __call__(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
    ) -> Float[Array, "B T V"]:
        """Logits over the symbols at every position, masked or not."""
        return self.encoder.head(self.encoder(tokens, lengths).states)

    def predict(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
    ) -> tuple[Float[Array, "B T V"], Float[Array, "B L N T T"]]:
        """Probabilities of the symbols at every position, and all attention weights."""
        encoded = self.encoder(tokens, lengths)
        return jax.nn.softmax(self.encoder.head(encoded.states), axis=-1), encoded.weights

    def embed(self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Float[Array, "B D"]:
        """The mean of the states of a row's own positions."""
        states = self.encoder(tokens, lengths).states
        real = padding_mask(lengths, tokens.shape[1])[:, 0, :, None]
        return jnp.where(real, states, 0).sum(axis=1) / lengths[:, None].astype(jnp.float32)

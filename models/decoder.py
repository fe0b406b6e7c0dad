"""Wiring 3: a causal decoder.

Axis letters: B batch, T position, D embed_dim, V vocab.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention".
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.blocks import Stacked, TransformerStack
from models.masks import causal_mask, combine_masks, padding_mask


class CausalLanguageModel(TransformerStack):
    """Predicts every token from those before it; ``special_id`` is ``<bos>``, which starts a text.

    Behind ``<bos>``, ``max_seq_len`` positions are read and as many predicted.
    """

    def read(self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Stacked:
        """The states of tokens that see only those before them, with what to continue from.

        Positions at or past a row's length are padding.
        """
        size = tokens.shape[1]
        mask = combine_masks(causal_mask(size), padding_mask(lengths, size))
        return self.run(tokens, jnp.arange(size)[None], mask)

    def __call__(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
    ) -> Float[Array, "B T V"]:
        """Logits for the token after every position."""
        return self.head(self.read(tokens, lengths).states)

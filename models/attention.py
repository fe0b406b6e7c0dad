"""Multi-head attention, for self-attention, cross-attention and a key/value cache alike.

Reading is split in two: ``project`` makes keys and values once, ``attend`` queries them as often
as needed. Self-attention, cross-attention into a fixed memory and cached decoding differ only in
where the keys and values come from. Heads lie in front of positions, as batches of matrices: so
products read keys and values where they are, and a cache is never moved.

Axis letters: B batch, T query position, S key position, N heads, H head_dim, D embed_dim.
Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.2; no biases.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from models.products import einsum_op


class KeyValues(NamedTuple):
    """What attention reads: one key and one value per position and head."""

    keys: Float[Array, "B N S H"]
    values: Float[Array, "B N S H"]


def attend(
    queries: Float[Array, "B N T H"], memory: KeyValues, mask: Bool[Array, "#B #T #S"]
) -> tuple[Float[Array, "B N T H"], Float[Array, "B N T S"]]:
    """The values averaged by softmax(query . key), and the weights, which sum to 1 over S.

    A row whose mask is False everywhere gets uniform weights, never NaN.
    """
    scores = jnp.einsum("BNTH,BNSH->BNTS", queries, memory.keys)
    scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("BNTS,BNSH->BNTH", weights, memory.values), weights


class MultiHeadAttention(nnx.Module):
    """Multi-head attention with separate query, key, value and output projections.

    ``query_scale`` multiplies the queries on top of 1/sqrt(H): above 1, attention starts out
    sharper than usual, which breaks the symmetry between queries that all see the same keys.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, query_scale: float = 1.0, rngs: nnx.Rngs
    ) -> None:
        head_dim = embed_dim // num_heads
        shape = (embed_dim, num_heads, head_dim)
        init = nnx.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
        self.scale = query_scale * head_dim**-0.5
        projection = partial(nnx.Einsum, einsum_op=einsum_op, rngs=rngs)
        self.query_proj = projection("BTD,DNH->BNTH", shape, kernel_init=init)
        self.key_proj = projection("BSD,DNH->BNSH", shape, kernel_init=init)
        self.value_proj = projection("BSD,DNH->BNSH", shape, kernel_init=init)
        self.out_proj = projection(
            "BNTH,NHD->BTD",
            (num_heads, head_dim, embed_dim),
            kernel_init=nnx.initializers.lecun_normal(in_axis=(0, 1), out_axis=2),
        )

    def project(self, inputs: Float[Array, "B S D"]) -> KeyValues:
        """The keys and values of ``inputs``, to be read by ``attend``."""
        return KeyValues(self.key_proj(inputs), self.value_proj(inputs))

    def attend(
        self, x: Float[Array, "B T D"], memory: KeyValues, mask: Bool[Array, "#B #T #S"]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B N T S"]]:
        """What ``x`` reads from ``memory``, and the attention weights.

        Weights that the caller drops cost nothing under ``jax.jit``.
        """
        values, weights = attend(self.query_proj(x) * self.scale, memory, mask)
        return self.out_proj(values), weights


def empty_cache(batch: int, size: int, num_heads: int, head_dim: int) -> KeyValues:
    """A key/value cache for ``size`` positions with nothing in it."""
    zeros = jnp.zeros((batch, num_heads, size, head_dim))
    return KeyValues(zeros, zeros)


def write_cache(cache: KeyValues, new: KeyValues, positions: Int[Array, " B"]) -> KeyValues:
    """The cache with the one position of ``new`` stored at ``positions``, each row at its own.

    A row whose position lies behind the end stores nothing. In a loop this is done in place.
    """
    batch, num_heads = cache.keys.shape[:2]
    # What one index says where to put lies together; every head of a row has an index of its own.
    where = jnp.arange(batch)[:, None], jnp.arange(num_heads)[None], positions[:, None]
    return KeyValues(
        cache.keys.at[where].set(new.keys[:, :, 0], mode="drop"),
        cache.values.at[where].set(new.values[:, :, 0], mode="drop"),
    )

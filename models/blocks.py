"""The one block of every wiring: pre-norm attention, then a pre-norm SwiGLU feed-forward.

``x + attention(norm(x))``, then ``x + mlp(norm(x))``; RMSNorm, no dropout, no biases.

Axis letters: B batch, T query position, S key position, Z source position, N heads, D embed_dim,
F inner width of the feed-forward, R row, L layers, V vocab.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention"; SwiGLU from
Shazeer (2020), arXiv:2002.05202; RMSNorm from Zhang and Sennrich (2019), arXiv:1910.07467.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues, MultiHeadAttention, write_cache
from models.products import linear, times


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockConfig:
    """The size of one block.

    Raises:
        ValueError: if a size is not positive or ``num_heads`` does not divide ``embed_dim``.
    """

    embed_dim: int
    num_heads: int

    def __post_init__(self) -> None:
        require_positive(embed_dim=self.embed_dim, num_heads=self.num_heads)
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of embed_dim {self.embed_dim}, got {self.num_heads}"
            )

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.embed_dim // self.num_heads

    @property
    def mlp_dim(self) -> int:
        """Inner width of the feed-forward.

        8/3 of the block's, so that its three matrices hold what two four-fold ones would.
        """
        return round(8 * self.embed_dim / 3)


def require_positive(**sizes: int) -> None:
    """Checks that every named size is at least 1.

    Raises:
        ValueError: if one is not; the message names all of them.
    """
    wrong = {name: size for name, size in sizes.items() if size < 1}
    if wrong:
        listed = ", ".join(f"{name}={size}" for name, size in wrong.items())
        raise ValueError(f"expected sizes of at least 1, got {listed}")


def embedding(num_embeddings: int, embed_dim: int, *, rngs: nnx.Rngs) -> nnx.Embed:
    """A lookup table drawn from N(0, 0.02)."""
    init = nnx.initializers.normal(stddev=0.02)
    return nnx.Embed(num_embeddings, embed_dim, embedding_init=init, rngs=rngs)


class FeedForward(nnx.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs) -> None:
        d, f = config.embed_dim, config.mlp_dim
        self.gate_proj = linear(d, f, rngs=rngs)
        self.up_proj = linear(d, f, rngs=rngs)
        self.down_proj = linear(f, d, rngs=rngs)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Transforms every position by itself."""
        rows = x.reshape(-1, x.shape[-1])
        inner = gated(self.gate_proj(rows), self.up_proj(rows))
        return self.down_proj(inner).reshape(x.shape)


_Pair = tuple[Float[Array, "R F"], Float[Array, "R F"]]


@jax.custom_vjp
def gated(gate: Float[Array, "R F"], up: Float[Array, "R F"]) -> Float[Array, "R F"]:
    """``silu(gate) * up``; for the gradient, nothing is kept but these two.

    By itself, JAX keeps what lies between as well, which takes longer to write and to read again
    than to compute anew.
    """
    return gate * _sigmoid(gate) * up


def _sigmoid(x: Float[Array, "R F"]) -> Float[Array, "R F"]:
    """By tanh, which takes less on a CPU than exp and a division."""
    return 0.5 + 0.5 * jnp.tanh(0.5 * x)


def _gated_forward(
    gate: Float[Array, "R F"], up: Float[Array, "R F"]
) -> tuple[Float[Array, "R F"], _Pair]:
    return gated(gate, up), (gate, up)


def _gated_backward(kept: _Pair, gradient: Float[Array, "R F"]) -> _Pair:
    gate, up = kept
    opened = _sigmoid(gate)
    return gradient * up * opened * (1 + gate * (1 - opened)), gradient * gate * opened


gated.defvjp(_gated_forward, _gated_backward)


class Attended(NamedTuple):
    """What a block gives; weights that the caller drops cost nothing under ``jax.jit``."""

    x: Float[Array, "B T D"]
    weights: Float[Array, "B N T S"]


class TransformerBlock(nnx.Module):
    """Self-attention and a feed-forward, each behind its own norm."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = nnx.RMSNorm(config.embed_dim, rngs=rngs)
        self.attention = MultiHeadAttention(config.embed_dim, config.num_heads, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(config.embed_dim, rngs=rngs)
        self.mlp = FeedForward(config, rngs=rngs)

    def project(self, x: Float[Array, "B T D"]) -> KeyValues:
        """The keys and values by which this block reads ``x``."""
        return self.attention.project(self.attention_norm(x))

    def __call__(
        self, x: Float[Array, "B T D"], memory: KeyValues, mask: Bool[Array, "#B #T #S"]
    ) -> Attended:
        """Lets every position of ``x`` read ``memory``: its own keys and values, or a cache."""
        attended, weights = self.attention.attend(self.attention_norm(x), memory, mask)
        x = x + attended
        return Attended(x + self.mlp(self.mlp_norm(x)), weights)


class DecoderBlock(nnx.Module):
    """Causal self-attention, cross-attention and a feed-forward, each behind its own norm."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs) -> None:
        self.self_norm = nnx.RMSNorm(config.embed_dim, rngs=rngs)
        self.self_attention = MultiHeadAttention(config.embed_dim, config.num_heads, rngs=rngs)
        self.cross_norm = nnx.RMSNorm(config.embed_dim, rngs=rngs)
        self.cross_attention = MultiHeadAttention(config.embed_dim, config.num_heads, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(config.embed_dim, rngs=rngs)
        self.mlp = FeedForward(config, rngs=rngs)

    def project(self, x: Float[Array, "B T D"]) -> KeyValues:
        """The keys and values by which the self-attention of this block reads ``x``."""
        return self.self_attention.project(self.self_norm(x))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        target: KeyValues,
        target_mask: Bool[Array, "#B #T #S"],
        source: KeyValues,
        source_mask: Bool[Array, "#B #T #Z"],
    ) -> Attended:
        """Lets every position of ``x`` read the target so far, then the encoded source.

        The weights are those of the cross-attention.
        """
        x = x + self.self_attention.attend(self.self_norm(x), target, target_mask)[0]
        crossed, weights = self.cross_attention.attend(self.cross_norm(x), source, source_mask)
        x = x + crossed
        return Attended(x + self.mlp(self.mlp_norm(x)), weights)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """The size of a stack of blocks over tokens.

    One special token, the mask of an encoder or the ``<bos>`` of a decoder, has the id
    ``vocab_size``: it has an embedding and is never an answer.

    Raises:
        ValueError: if a size is not positive or ``num_heads`` does not divide ``embed_dim``.
    """

    vocab_size: int
    embed_dim: int
    num_heads: int
    num_layers: int
    max_seq_len: int

    def __post_init__(self) -> None:
        require_positive(
            vocab_size=self.vocab_size, num_layers=self.num_layers, max_seq_len=self.max_seq_len
        )
        _ = self.block

    @property
    def block(self) -> BlockConfig:
        """The size of every block."""
        return BlockConfig(embed_dim=self.embed_dim, num_heads=self.num_heads)

    @property
    def special_id(self) -> int:
        """Token id of the one special token."""
        return self.vocab_size

    @classmethod
    def book(cls, vocab_size: int) -> "TransformerConfig":
        """The published sizes: D 128, 4 heads, 4 blocks, 64 positions."""
        return cls(vocab_size=vocab_size, embed_dim=128, num_heads=4, num_layers=4, max_seq_len=64)

    @classmethod
    def debug(cls, vocab_size: int) -> "TransformerConfig":
        """Small enough to train in seconds."""
        return cls(vocab_size=vocab_size, embed_dim=16, num_heads=2, num_layers=2, max_seq_len=64)


class Stacked(NamedTuple):
    """What a ``TransformerStack`` gives; parts that the caller drops cost nothing under jit."""

    states: Float[Array, "B T D"]
    weights: Float[Array, "B L N T S"]
    key_values: tuple[KeyValues, ...]


class TransformerStack(nnx.Module):
    """Token and position embeddings, blocks and a final norm, with a head tied to the embedding.

    Encoder and decoder differ in the mask alone.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.token_embedding = embedding(config.vocab_size + 1, config.embed_dim, rngs=rngs)
        self.position_embedding = embedding(config.max_seq_len, config.embed_dim, rngs=rngs)
        self.blocks = nnx.List(
            [TransformerBlock(config.block, rngs=rngs) for _ in range(config.num_layers)]
        )
        self.final_norm = nnx.RMSNorm(config.embed_dim, rngs=rngs)

    def run(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "#B T"],
        mask: Bool[Array, "#B #T #S"],
        caches: tuple[KeyValues, ...] | None = None,
    ) -> Stacked:
        """The final state of every token, and what each block attended to.

        With ``caches``, the one token of every row is stored in each block's cache at its
        position, and reads that cache instead of itself alone.
        """
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        weights, key_values = [], []
        for index, block in enumerate(self.blocks):
            memory = block.project(x)
            if caches is not None:
                memory = write_cache(caches[index], memory, positions[:, 0])
            x, attention = block(x, memory, mask)
            weights.append(attention)
            key_values.append(memory)
        return Stacked(self.final_norm(x), jnp.stack(weights, axis=1), tuple(key_values))

    def head(self, states: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Logits over the symbols."""
        table = self.token_embedding.embedding[: self.config.vocab_size]
        return times(states, table.T)

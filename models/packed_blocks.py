"""Blocks laid out for inference, shared by the packed forms of all wirings.

The same numbers in fewer and larger operations: the scales of the norms and of the queries are
multiplied into the matrices behind them, and matrices that read the same input lie side by side.
The first block's matrix is multiplied into the embeddings that it reads: a norm divides what comes
out by one number, so the queries, keys and values of a token at a position are two rows looked up.

Axis letters: B batch, T position, K asked position, S memory position, N heads, H head_dim,
D embed_dim.
Source: the block of models/blocks.py.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues, MultiHeadAttention
from models.blocks import DecoderBlock, FeedForward, TransformerBlock

# On the host while it is packed, on a device afterwards.
Matrix = Float[Array, "_ _"] | Float[np.ndarray, "_ _"]
Vector = Float[Array, " _"] | Float[np.ndarray, " _"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedFeedForward:
    """A feed-forward and the norm before it."""

    gate: Matrix
    up: Matrix
    down: Matrix


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedAttention:
    """An attention and the norm before its queries.

    ``key_value`` holds two matrices side by side, keys first.
    """

    query: Matrix
    key_value: Matrix
    out: Matrix


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedBlock:
    """One block; ``query_key_value`` holds three matrices side by side, in this order."""

    query_key_value: Matrix
    out: Matrix
    mlp: PackedFeedForward


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedDecoderBlock:
    """One block that reads an encoded source too.

    The norm behind the encoder is part of ``cross.key_value``, where there is one.
    """

    query_key_value: Matrix
    out: Matrix
    cross: PackedAttention
    mlp: PackedFeedForward


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedEmbedding:
    """Embeddings of tokens and of positions, and what the first block's matrix makes of them."""

    tokens: Matrix
    positions: Matrix
    projected_tokens: Matrix
    projected_positions: Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the matrices of a packed model do not say: the number of heads, the norms' epsilon."""

    num_heads: int
    epsilon: float


def pack_block(block: TransformerBlock) -> PackedBlock:
    """A block that reads its own input alone."""
    attention = pack_attention(block.attention, block.attention_norm, block.attention_norm)
    return PackedBlock(
        query_key_value=np.concatenate([attention.query, attention.key_value], axis=1),
        out=attention.out,
        mlp=pack_feed_forward(block.mlp, block.mlp_norm),
    )


def pack_decoder_block(block: DecoderBlock, source_norm: nnx.RMSNorm) -> PackedDecoderBlock:
    """A block that reads a source behind ``source_norm`` too."""
    attention = pack_attention(block.self_attention, block.self_norm, block.self_norm)
    return PackedDecoderBlock(
        query_key_value=np.concatenate([attention.query, attention.key_value], axis=1),
        out=attention.out,
        cross=pack_attention(block.cross_attention, block.cross_norm, source_norm),
        mlp=pack_feed_forward(block.mlp, block.mlp_norm),
    )


def pack_embedding(
    tokens: nnx.Embed, positions: nnx.Embed, query_key_value: Matrix
) -> PackedEmbedding:
    """Embeddings that a block with that matrix reads first."""
    of_tokens, of_positions = on_host(tokens.embedding), on_host(positions.embedding)
    # Rounded once: the sum of two rows is to be as near as the product of a sum would be.
    projected_tokens, projected_positions = (
        (table.astype(np.float64) @ query_key_value).astype(np.float32)
        for table in (of_tokens, of_positions)
    )
    return PackedEmbedding(
        tokens=of_tokens,
        positions=of_positions,
        projected_tokens=projected_tokens,
        projected_positions=projected_positions,
    )


def pack_attention(
    attention: MultiHeadAttention, query_norm: nnx.RMSNorm, memory_norm: nnx.RMSNorm | None = None
) -> PackedAttention:
    """An attention with the norms before its queries, and before what it reads if there is one."""
    query, key, value, out = (
        on_host(projection.kernel)
        for projection in (
            attention.query_proj,
            attention.key_proj,
            attention.value_proj,
            attention.out_proj,
        )
    )
    width = query.shape[0]
    scale = np.float32(attention.scale) * on_host(query_norm.scale)[:, None]
    key_value = np.concatenate([key.reshape(width, width), value.reshape(width, width)], axis=1)
    if memory_norm is not None:
        key_value = on_host(memory_norm.scale)[:, None] * key_value
    return PackedAttention(
        query=scale * query.reshape(width, width),
        key_value=key_value,
        out=out.reshape(width, width),
    )


def pack_feed_forward(mlp: FeedForward, mlp_norm: nnx.RMSNorm) -> PackedFeedForward:
    """A feed-forward with the scale of its norm."""
    scale = on_host(mlp_norm.scale)[:, None]
    return PackedFeedForward(
        gate=scale * on_host(mlp.gate_proj.kernel),
        up=scale * on_host(mlp.up_proj.kernel),
        down=on_host(mlp.down_proj.kernel),
    )


def on_host(param: nnx.Param | None) -> np.ndarray:
    """The numbers of a parameter, which is there."""
    assert param is not None
    return np.asarray(param[...])


def place_like(packed: Any, param: nnx.Param) -> Any:
    """``packed``, where ``param`` lies."""
    return jax.device_put(packed, param[...].sharding)


def embedded(
    embedding: PackedEmbedding,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "#B T"],
    shape: Shape,
) -> tuple[Float[Array, "B T D"], Float[Array, "B T _"]]:
    """What the first block reads, and what its matrix makes of that behind its norm."""
    x = embedding.tokens[tokens] + embedding.positions[positions]
    of_tokens = embedding.projected_tokens[tokens].astype(jnp.float32)
    projected = of_tokens + embedding.projected_positions[positions].astype(jnp.float32)
    return x, (projected * _over_norm(x, shape)).astype(x.dtype)


def own(
    projected: Float[Array, "B T _"], shape: Shape
) -> tuple[Float[Array, "B N T H"], KeyValues]:
    """The queries, and the keys and values, of positions that read themselves."""
    queries, keys, values = (split_heads(a, shape) for a in jnp.split(projected, 3, axis=-1))
    return queries, KeyValues(keys, values)


def through(
    block: PackedBlock,
    x: Float[Array, "B T D"],
    mask: Bool[Array, "#B #T T"],
    shape: Shape,
    projected: Float[Array, "B T _"] | None = None,
) -> Float[Array, "B T D"]:
    """Every position through a block; ``projected`` is what its matrix makes of ``x``, if known."""
    if projected is None:
        projected = norm(x, shape) @ block.query_key_value
    queries, memory = own(projected, shape)
    x = x + attend(queries, memory, mask)[0] @ block.out
    return fed_forward(block.mlp, x, shape)


def fed_forward(
    mlp: PackedFeedForward, x: Float[Array, "B T D"], shape: Shape
) -> Float[Array, "B T D"]:
    """``x`` and what the feed-forward adds to it."""
    normed = norm(x, shape)
    return x + (_silu(normed @ mlp.gate) * (normed @ mlp.up)) @ mlp.down


def _silu(x: Float[Array, "*B F"]) -> Float[Array, "*B F"]:
    """``x * sigmoid(x)``, by tanh, which takes less on a CPU than exp and a division."""
    return x * (0.5 + 0.5 * jnp.tanh(0.5 * x))


def attend(
    queries: Float[Array, "B N K H"], memory: KeyValues, mask: Bool[Array, "#B #K S"]
) -> tuple[Float[Array, "B K D"], Float[Array, "B N K S"]]:
    """What every query reads, heads side by side, and the weights; softmax in float32.

    Weights that the caller drops cost nothing under ``jax.jit``.
    """
    keys, values = memory
    scores = jnp.einsum("BNKH,BNSH->BNKS", queries, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return merge_heads(jnp.einsum("BNKS,BNSH->BNKH", weights, values)), weights


def split_heads(x: Float[Array, "B T D"], shape: Shape) -> Float[Array, "B N T H"]:
    """``x`` as its heads."""
    return jnp.swapaxes(x.reshape(*x.shape[:2], shape.num_heads, -1), 1, 2)


def merge_heads(x: Float[Array, "B N T H"]) -> Float[Array, "B T D"]:
    """What ``split_heads`` took apart."""
    return jnp.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def norm(x: Float[Array, "*B D"], shape: Shape) -> Float[Array, "*B D"]:
    """RMSNorm without its scale."""
    return (x.astype(jnp.float32) * _over_norm(x, shape)).astype(x.dtype)


def _over_norm(x: Float[Array, "*B D"], shape: Shape) -> Float[Array, "*B 1"]:
    """What a norm multiplies by."""
    wide = x.astype(jnp.float32)
    return jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + shape.epsilon)

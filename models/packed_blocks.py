"""Blocks laid out for speed, shared by the packed forms of all wirings.

The same numbers in fewer and larger operations: the scales of the norms and of the queries are
multiplied into the matrices behind them, and matrices that read the same input lie side by side.
The first block's matrix is multiplied into the embeddings that it reads: a norm divides what comes
out by one number, so the queries, keys and values of a token at a position are two rows looked up.

Matrices may be kept in half the width, to be multiplied in it (models/products.py); what lies
between products is float32 all the same.

What is packed once, for inference, is worked out on the host. Inside a compiled function packing is
a part of it, through which gradients reach the parameters; the first block's matrix then stays by
itself, as tables that are read once cost more than they save.

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
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues, MultiHeadAttention
from models.blocks import DecoderBlock, FeedForward, TransformerBlock, gated
from models.products import times, unrounded

# Units that multiply narrow numbers take so many rows and columns at a time, or fewer.
UNIT_WIDTH = 32

# On the host while it is packed for inference, on a device afterwards.
Matrix = Float[Array, "_ _"] | Float[np.ndarray, "_ _"]
Vector = Float[Array, " _"] | Float[np.ndarray, " _"]


class Wide:
    """Arrays that are looked up, added or scaled by, not multiplied: they stay float32."""

    __slots__ = ()


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
class PackedEmbedding(Wide):
    """Embeddings of tokens and of positions, and what the first block's matrix makes of them.

    ``projected_tokens`` and ``projected_positions`` are None where they were not worked out.
    """

    tokens: Matrix
    positions: Matrix
    projected_tokens: Matrix | None = None
    projected_positions: Matrix | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the matrices of a packed model do not say: the number of heads, the norms' epsilon."""

    num_heads: int
    epsilon: float


def pack_block(block: TransformerBlock) -> PackedBlock:
    """A block that reads its own input alone."""
    attention = pack_attention(block.attention, block.attention_norm, block.attention_norm)
    return PackedBlock(
        query_key_value=beside(attention.query, attention.key_value),
        out=attention.out,
        mlp=pack_feed_forward(block.mlp, block.mlp_norm),
    )


def pack_decoder_block(block: DecoderBlock, source_norm: nnx.RMSNorm) -> PackedDecoderBlock:
    """A block that reads a source behind ``source_norm`` too."""
    attention = pack_attention(block.self_attention, block.self_norm, block.self_norm)
    return PackedDecoderBlock(
        query_key_value=beside(attention.query, attention.key_value),
        out=attention.out,
        cross=pack_attention(block.cross_attention, block.cross_norm, source_norm),
        mlp=pack_feed_forward(block.mlp, block.mlp_norm),
    )


def pack_embedding(
    tokens: nnx.Embed, positions: nnx.Embed, query_key_value: Matrix
) -> PackedEmbedding:
    """Embeddings that a block with that matrix reads first."""
    of_tokens, of_positions = numbers(tokens.embedding), numbers(positions.embedding)
    if isinstance(of_tokens, Tracer):
        return PackedEmbedding(tokens=of_tokens, positions=of_positions)
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
        numbers(projection.kernel)
        for projection in (
            attention.query_proj,
            attention.key_proj,
            attention.value_proj,
            attention.out_proj,
        )
    )
    width = query.shape[0]
    scale = attention.scale * numbers(query_norm.scale)[:, None]
    key_value = beside(key.reshape(width, width), value.reshape(width, width))
    if memory_norm is not None:
        key_value = numbers(memory_norm.scale)[:, None] * key_value
    return PackedAttention(
        query=scale * query.reshape(width, width),
        key_value=key_value,
        out=out.reshape(width, width),
    )


def pack_feed_forward(mlp: FeedForward, mlp_norm: nnx.RMSNorm) -> PackedFeedForward:
    """A feed-forward with the scale of its norm."""
    scale = numbers(mlp_norm.scale)[:, None]
    return PackedFeedForward(
        gate=scale * numbers(mlp.gate_proj.kernel),
        up=scale * numbers(mlp.up_proj.kernel),
        down=numbers(mlp.down_proj.kernel),
    )


def numbers(param: nnx.Param | None) -> Any:
    """The numbers of a parameter, which is there: on the host, unless they are being traced."""
    assert param is not None
    value = param[...]
    return value if isinstance(value, Tracer) else np.asarray(value)


def beside(*matrices: Matrix) -> Any:
    """Matrices side by side; on the host, if they are."""
    on_host = all(isinstance(matrix, np.ndarray) for matrix in matrices)
    return (np if on_host else jnp).concatenate(matrices, axis=1)


def place_like(packed: Any, param: nnx.Param) -> Any:
    """``packed``, where ``param`` lies; what is being traced stays where it is."""
    value = param[...]
    return packed if isinstance(value, Tracer) else jax.device_put(packed, value.sharding)


def narrowed(packed: Any, dtype: Any) -> Any:
    """A packed model with its matrices in ``dtype``.

    Where that is less than float32, feed-forwards have an inner width of whole tiles: zeros, which
    stay zeros behind the gate.
    """
    if jnp.dtype(dtype) == jnp.float32:
        return packed

    def narrow(part: Any) -> Any:
        if isinstance(part, PackedFeedForward):
            part = _in_tiles(part)
        return part if isinstance(part, Wide) else jax.tree.map(lambda m: m.astype(dtype), part)

    return jax.tree.map(narrow, packed, is_leaf=lambda p: isinstance(p, (Wide, PackedFeedForward)))


def _in_tiles(mlp: PackedFeedForward) -> PackedFeedForward:
    behind = [(0, 0), (0, -mlp.gate.shape[1] % UNIT_WIDTH)]
    return PackedFeedForward(
        gate=jnp.pad(mlp.gate, behind),
        up=jnp.pad(mlp.up, behind),
        down=jnp.pad(mlp.down, behind[::-1]),
    )


def embedded(
    embedding: PackedEmbedding,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "#B T"],
    shape: Shape,
) -> tuple[Float[Array, "B T D"], Float[Array, "B T _"] | None]:
    """What the first block reads, and what its matrix makes of that behind its norm, if known."""
    x = embedding.tokens[tokens] + embedding.positions[positions]
    if embedding.projected_tokens is None or embedding.projected_positions is None:
        return x, None
    projected = embedding.projected_tokens[tokens] + embedding.projected_positions[positions]
    return x, projected * _over_norm(x, shape)


def own(
    projected: Float[Array, "B T _"], shape: Shape
) -> tuple[Float[Array, "B N T H"], KeyValues]:
    """The queries, and the keys and values, of positions that read themselves."""
    queries, keys, values = (split_heads(a, shape) for a in jnp.split(projected, 3, axis=-1))
    return queries, KeyValues(keys, values)


def key_values(x: Float[Array, "B S D"], matrix: Matrix, shape: Shape) -> KeyValues:
    """The keys and values that ``matrix`` makes of ``x``."""
    keys, values = jnp.split(times(x, matrix), 2, axis=-1)
    return KeyValues(split_heads(keys, shape), split_heads(values, shape))


def through(
    block: PackedBlock,
    x: Float[Array, "B T D"],
    mask: Bool[Array, "#B #T T"],
    shape: Shape,
    projected: Float[Array, "B T _"] | None = None,
) -> Float[Array, "B T D"]:
    """Every position through a block; ``projected`` is what its matrix makes of ``x``, if known."""
    if projected is None:
        projected = times(norm(x, shape), block.query_key_value)
    queries, memory = own(projected, shape)
    x = x + times(attend(queries, memory, mask)[0], block.out)
    return fed_forward(block.mlp, x, shape)


def fed_forward(
    mlp: PackedFeedForward, x: Float[Array, "B T D"], shape: Shape
) -> Float[Array, "B T D"]:
    """``x`` and what the feed-forward adds to it."""
    normed = norm(x, shape).reshape(-1, x.shape[-1])
    inner = gated(times(normed, mlp.gate), times(normed, mlp.up))
    return x + times(inner, mlp.down).reshape(x.shape)


def attend(
    queries: Float[Array, "B N K H"], memory: KeyValues, mask: Bool[Array, "#B #K S"]
) -> tuple[Float[Array, "B K D"], Float[Array, "B N K S"]]:
    """What every query reads, heads side by side, and the weights.

    Weights that the caller drops cost nothing under ``jax.jit``.
    """
    keys, values = memory
    scores = unrounded("BNKH,BNSH->BNKS", queries, keys)
    scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores, axis=-1)
    return merge_heads(unrounded("BNKS,BNSH->BNKH", weights, values)), weights


def split_heads(x: Float[Array, "B T D"], shape: Shape) -> Float[Array, "B N T H"]:
    """``x`` as its heads."""
    return jnp.swapaxes(x.reshape(*x.shape[:2], shape.num_heads, -1), 1, 2)


def merge_heads(x: Float[Array, "B N T H"]) -> Float[Array, "B T D"]:
    """What ``split_heads`` took apart."""
    return jnp.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def norm(x: Float[Array, "*B D"], shape: Shape) -> Float[Array, "*B D"]:
    """RMSNorm without its scale."""
    return x * _over_norm(x, shape)


def _over_norm(x: Float[Array, "*B D"], shape: Shape) -> Float[Array, "*B 1"]:
    """What a norm multiplies by."""
    return jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + shape.epsilon)

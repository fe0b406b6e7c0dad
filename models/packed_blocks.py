"""Blocks laid out for inference, shared by the packed forms of all wirings.

The same numbers in fewer and larger operations: the scales of the norms and of the queries are
multiplied into the matrices behind them, matrices that read the same input lie side by side, and
the softmax is divided after its product with the values, which is smaller than the weights.

Axis letters: B batch, T position, K asked position, N heads, H head_dim, D embed_dim.
Source: the block of models/blocks.py; the order of the division after Dao et al. (2022),
arXiv:2205.14135, section 3.1.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from models.attention import MultiHeadAttention
from models.blocks import FeedForward, TransformerBlock

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the matrices of a packed model do not say: the number of heads, the norms' epsilon."""

    num_heads: int
    epsilon: float


def pack_block(block: TransformerBlock) -> PackedBlock:
    """A block of any wiring."""
    attention = pack_attention(block.attention, block.attention_norm)
    # Keys and values read what the queries do, behind the same norm.
    scale = on_host(block.attention_norm.scale)[:, None]
    return PackedBlock(
        query_key_value=np.concatenate([attention.query, scale * attention.key_value], axis=1),
        out=attention.out,
        mlp=pack_feed_forward(block.mlp, block.mlp_norm),
    )


def pack_attention(attention: MultiHeadAttention, query_norm: nnx.RMSNorm) -> PackedAttention:
    """An attention that reads something else than what asks."""
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
    return PackedAttention(
        query=scale * query.reshape(width, width),
        key_value=np.concatenate([key.reshape(width, width), value.reshape(width, width)], axis=1),
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


def through(
    block: PackedBlock,
    x: Float[Array, "B T D"],
    mask: Bool[Array, "#B #T T"],
    shape: Shape,
) -> Float[Array, "B T D"]:
    """Every position through a block."""
    projected = norm(x, shape) @ block.query_key_value
    queries, keys, values = jnp.split(projected, 3, axis=-1)
    x = x + attend(queries, keys, values, mask, shape) @ block.out
    return fed_forward(block.mlp, x, shape)


def fed_forward(
    mlp: PackedFeedForward, x: Float[Array, "B T D"], shape: Shape
) -> Float[Array, "B T D"]:
    """``x`` and what the feed-forward adds to it."""
    normed = norm(x, shape)
    return x + (jax.nn.silu(normed @ mlp.gate) * (normed @ mlp.up)) @ mlp.down


def attend(
    queries: Float[Array, "B K D"],
    keys: Float[Array, "B T D"],
    values: Float[Array, "B T D"],
    mask: Bool[Array, "#B #K T"],
    shape: Shape,
) -> Float[Array, "B K D"]:
    """What every query reads; softmax in float32, as everywhere."""
    batch, _, width = queries.shape
    q, k, v = (split_heads(a, shape) for a in (queries, keys, values))
    scores = jnp.einsum("BKNH,BTNH->BNKT", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    sums = jnp.sum(weights, axis=-1)
    read = jnp.einsum("BNKT,BTNH->BKNH", weights.astype(v.dtype), v)
    read = read / jnp.swapaxes(sums, 1, 2)[..., None].astype(v.dtype)
    return read.reshape(batch, -1, width)


def split_heads(x: Float[Array, "B T D"], shape: Shape) -> Float[Array, "B T N H"]:
    """``x`` as its heads."""
    return x.reshape(*x.shape[:2], shape.num_heads, -1)


def norm(x: Float[Array, "*B D"], shape: Shape) -> Float[Array, "*B D"]:
    """RMSNorm without its scale."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + shape.epsilon)).astype(x.dtype)

"""Many inputs read by few queries, in whatever way is the cheapest.

- **Folding.** Keys and values of N inputs cost 2ND^2. Where that is cheaper, the queries go through
  the key matrix instead and what was read through the value matrix, so that every query asks and
  reads the inputs themselves, once for each head.
- **Tiles.** Long inputs are read a tile at a time, with the sums of the softmax carried along. What
  is in use stays in the processor's cache, and a tile that is padding in every row costs nothing.
- **Parts.** By the same sums, what was read of every part of an input is joined to what is read of
  it all. A part is read without the others, so several processors can share a long input.

Axis letters: B batch, S input position, M query, N heads, H head_dim, D embed_dim; as they are
read, G groups of Q queries of width W: the heads, or one group of all queries of all heads.
Source: softmax over tiles from Milakov and Gimelshein (2018), arXiv:1805.02867.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues, MultiHeadAttention
from models.masks import padding_mask
from models.packed_blocks import (
    Matrix,
    Shape,
    key_values,
    merge_heads,
    norm,
    pack_attention,
    split_heads,
)
from models.products import product, times

# Inputs that are read at a time.
TILE = 512

# On the host while it is packed for inference, on a device afterwards.
ByHead = Float[Array, "N D H"] | Float[np.ndarray, "N D H"]

# The inputs from the first position on that is given, as many as the second says.
Inputs = Callable[[Int[Array, ""], int], Float[Array, "B S D"]]
Carry = TypeVar("Carry")


class _Sums(NamedTuple):
    """A softmax on its way: the largest score, the sum of the weights, and what they read."""

    largest: Float[Array, "B G Q 1"]
    total: Float[Array, "B G Q 1"]
    read: Float[Array, "B G Q W"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedReading:
    """An attention that may be folded, and the norm before its queries.

    The matrices of keys and values are there twice: side by side, and by head for folding.
    """

    query: Matrix
    key_value: Matrix
    key_by_head: ByHead
    value_by_head: ByHead
    out: Matrix


def pack_reading(
    attention: MultiHeadAttention, query_norm: nnx.RMSNorm, shape: Shape
) -> PackedReading:
    """An attention with the norm before its queries."""
    packed = pack_attention(attention, query_norm)
    width = len(packed.out)
    key, value = (
        matrix.reshape(width, shape.num_heads, -1).swapaxes(0, 1)
        for matrix in (packed.key_value[:, :width], packed.key_value[:, width:])
    )
    return PackedReading(
        query=packed.query,
        key_value=packed.key_value,
        key_by_head=key,
        value_by_head=value,
        out=packed.out,
    )


class Reading(NamedTuple):
    """What queries read of inputs, heads side by side, and the softmax that it is weighted by.

    ``largest`` are the largest scores, and ``totals`` the sums of what the softmax divides by them.
    """

    read: Float[Array, "B M D"]
    largest: Float[Array, "B M N"]
    totals: Float[Array, "B M N"]


def is_folded(num_queries: int, num_inputs: int, width: int, num_heads: int) -> bool:
    """Whether folding takes fewer multiplications, for queries and inputs of one row.

    Keys and values cost 2SD^2 and then 2MSD to be read; folded, it is 2NMSD to read the inputs and
    2MD^2 to go through both matrices.
    """
    plain = num_inputs * width + num_queries * num_inputs
    return num_heads * num_queries * num_inputs + num_queries * width < plain


def read(
    attention: PackedReading,
    asking: Float[Array, "B M D"],
    inputs: Inputs,
    size: int,
    lengths: Int[Array, " B"],
    shape: Shape,
) -> Reading:
    """What ``asking`` reads of ``size`` inputs, of which a row has ``lengths``.

    It has yet to go through the matrix behind the heads.
    """
    folds = is_folded(asking.shape[1], size, asking.shape[2], shape.num_heads)
    queries = _queries(attention, asking, shape, folds=folds)
    tile = min(size, TILE)

    def step(start: Int[Array, ""], sums: _Sums) -> _Sums:
        memory = _memory(attention, inputs(start, tile), shape, folds=folds)
        scores = _scores(queries, memory, padding_mask(lengths - start, tile), folds=folds)
        return _add(sums, scores, memory.values, folds=folds)

    # Of the queries: with much that is ready before them, XLA hands the call to its pool.
    zeros = queries[..., :1] * 0
    nothing = _Sums(zeros + jnp.finfo(zeros.dtype).min, zeros, queries * 0)
    sums = over_tiles(step, nothing, size, tile, lengths)
    return Reading(
        read=_by_value(attention, sums.read / sums.total, shape, folds=folds),
        largest=_by_query(sums.largest, shape),
        totals=_by_query(sums.total, shape),
    )


def joined(
    read: Float[np.ndarray, "P M D"],
    largest: Float[np.ndarray, "P M N"],
    totals: Float[np.ndarray, "P M N"],
) -> Float[np.ndarray, "M D"]:
    """What is read of an input of P parts, from the ``Reading`` of each; on the host."""
    weights = totals * np.exp(largest - largest.max(axis=0))
    weights /= weights.sum(axis=0)
    by_head = read.reshape(*weights.shape, -1)
    return (by_head * weights[..., None]).sum(axis=0).reshape(read.shape[1:])


def reading_weights(
    attention: PackedReading,
    asking: Float[Array, "B M D"],
    inputs: Float[Array, "B S D"],
    lengths: Int[Array, " B"],
    shape: Shape,
) -> Float[Array, "B N M S"]:
    """Where ``asking`` looks; the weights sum to 1 over S."""
    size = inputs.shape[1]
    folds = is_folded(asking.shape[1], size, asking.shape[2], shape.num_heads)
    queries = _queries(attention, asking, shape, folds=folds)
    memory = _memory(attention, inputs, shape, folds=folds)
    scores = _scores(queries, memory, padding_mask(lengths, size), folds=folds)
    weights = jax.nn.softmax(scores, axis=-1)
    return weights.reshape(asking.shape[0], shape.num_heads, asking.shape[1], size)


def over_tiles(
    step: Callable[[Int[Array, ""], Carry], Carry],
    nothing: Carry,
    size: int,
    tile: int,
    lengths: Int[Array, " B"],
) -> Carry:
    """What ``step`` makes of ``nothing``, tile after tile, as far as the longest row goes."""
    if tile >= size:
        return step(jnp.array(0, jnp.int32), nothing)
    count = (jnp.max(lengths) + tile - 1) // tile
    return jax.lax.fori_loop(0, count, lambda index, carry: step(index * tile, carry), nothing)


def _queries(
    attention: PackedReading, asking: Float[Array, "B M D"], shape: Shape, *, folds: bool
) -> Float[Array, "B G Q W"]:
    queries = split_heads(times(norm(asking, shape), attention.query), shape)
    if not folds:
        return queries
    folded = product("NDH,BNMH->BNMD", attention.key_by_head, queries)
    return folded.reshape(asking.shape[0], 1, -1, asking.shape[2])


def _memory(
    attention: PackedReading, inputs: Float[Array, "B S D"], shape: Shape, *, folds: bool
) -> KeyValues:
    """What is asked and read, with groups in place of heads."""
    if folds:
        everything = inputs[:, None].astype(attention.key_value.dtype)
        return KeyValues(everything, everything)
    return key_values(inputs, attention.key_value, shape)


def _by_value(
    attention: PackedReading, found: Float[Array, "B G Q W"], shape: Shape, *, folds: bool
) -> Float[Array, "B M D"]:
    """What was read, through the value matrix if that is yet to come, with heads side by side."""
    if folds:
        by_head = found.reshape(found.shape[0], shape.num_heads, -1, found.shape[-1])
        found = product("NDH,BNMD->BNMH", attention.value_by_head, by_head)
    return merge_heads(found)


def _by_query(sums: Float[Array, "B G Q 1"], shape: Shape) -> Float[Array, "B M N"]:
    """One number of every query and head."""
    return jnp.swapaxes(sums.reshape(sums.shape[0], shape.num_heads, -1), 1, 2)


def _scores(
    queries: Float[Array, "B G Q W"], memory: KeyValues, mask: Bool[Array, "B 1 S"], *, folds: bool
) -> Float[Array, "B G Q S"]:
    scores = _multiplied("BGQW,BGSW->BGQS", queries, memory.keys, folds=folds)
    return jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)


def _add(
    sums: _Sums, scores: Float[Array, "B G Q S"], values: Float[Array, "B G S W"], *, folds: bool
) -> _Sums:
    """``sums`` with one more tile."""
    largest = jnp.maximum(sums.largest, jnp.max(scores, axis=-1, keepdims=True))
    kept = jnp.exp(sums.largest - largest)
    weights = jnp.exp(scores - largest)
    new = _multiplied("BGQS,BGSW->BGQW", weights, values, folds=folds)
    return _Sums(
        largest=largest,
        total=sums.total * kept + jnp.sum(weights, axis=-1, keepdims=True),
        read=sums.read * kept + new,
    )


def _multiplied(
    spec: str, first: Float[Array, "B G Q _"], second: Float[Array, "B G S W"], *, folds: bool
) -> Float[Array, "B G Q _"]:
    """What is folded stands in for a product with a matrix, and is rounded as that is."""
    return product(spec, first, second) if folds else jnp.einsum(spec, first, second)

"""Many inputs read by few queries, in whatever way is the cheapest.

- **Folding.** Keys and values of N inputs cost 2ND^2. Where that is cheaper, the queries go through
  the key matrix instead and what was read through the value matrix, so that every query asks and
  reads the inputs themselves, once for each head.
- **Tiles.** Long inputs are read a tile at a time, with the sums of the softmax carried along. What
  is in use stays in the processor's cache, and a tile that is padding in every row costs nothing.

Axis letters: B batch, S input position, M query, N heads, H head_dim, D embed_dim; as they are
read, G groups of Q queries of width W: the heads, or one group of all queries of all heads.
Source: softmax over tiles from Milakov and Gimelshein (2018), arXiv:1805.02867.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues
from models.masks import padding_mask
from models.packed_blocks import (
    PackedAttention,
    Shape,
    key_values,
    merge_heads,
    norm,
    split_heads,
)
from models.products import product, times

# Inputs that are read at a time.
TILE = 512

# The inputs from the first position on that is given, as many as the second says.
Inputs = Callable[[Int[Array, ""], int], Float[Array, "B S D"]]
Carry = TypeVar("Carry")


class _Sums(NamedTuple):
    """A softmax on its way: the largest score, the sum of the weights, and what they read."""

    largest: Float[Array, "B G Q 1"]
    total: Float[Array, "B G Q 1"]
    read: Float[Array, "B G Q W"]


def is_folded(num_queries: int, num_inputs: int, width: int, num_heads: int) -> bool:
    """Whether folding takes fewer multiplications, for queries and inputs of one row.

    Keys and values cost 2SD^2 and then 2MSD to be read; folded, it is 2NMSD to read the inputs and
    2MD^2 to go through both matrices.
    """
    plain = num_inputs * width + num_queries * num_inputs
    return num_heads * num_queries * num_inputs + num_queries * width < plain


def read(
    attention: PackedAttention,
    asking: Float[Array, "B M D"],
    inputs: Inputs,
    size: int,
    lengths: Int[Array, " B"],
    shape: Shape,
) -> Float[Array, "B M D"]:
    """What ``asking`` reads of ``size`` inputs, of which a row has ``lengths``."""
    folds = is_folded(asking.shape[1], size, asking.shape[2], shape.num_heads)
    queries = _queries(attention, asking, shape, folds=folds)
    tile = min(size, TILE)

    def step(start: Int[Array, ""], sums: _Sums) -> _Sums:
        memory = _memory(attention, inputs(start, tile), shape, folds=folds)
        scores = _scores(queries, memory, padding_mask(lengths - start, tile), folds=folds)
        return _add(sums, scores, memory.values, folds=folds)

    zeros = jnp.zeros((*queries.shape[:3], 1), jnp.float32)
    nothing = _Sums(zeros + jnp.finfo(zeros.dtype).min, zeros, jnp.zeros_like(queries))
    sums = over_tiles(step, nothing, size, tile, lengths)
    return _out(attention, sums.read / sums.total, shape, folds=folds)


def reading_weights(
    attention: PackedAttention,
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
    attention: PackedAttention, asking: Float[Array, "B M D"], shape: Shape, *, folds: bool
) -> Float[Array, "B G Q W"]:
    queries = split_heads(times(norm(asking, shape), attention.query), shape)
    if not folds:
        return queries
    key, _ = _by_head(attention, shape)
    folded = product("BNMH,DNH->BNMD", queries, key)
    return folded.reshape(asking.shape[0], 1, -1, asking.shape[2])


def _memory(
    attention: PackedAttention, inputs: Float[Array, "B S D"], shape: Shape, *, folds: bool
) -> KeyValues:
    """What is asked and read, with groups in place of heads."""
    if folds:
        everything = inputs[:, None].astype(attention.key_value.dtype)
        return KeyValues(everything, everything)
    return key_values(inputs, attention.key_value, shape)


def _out(
    attention: PackedAttention, found: Float[Array, "B G Q W"], shape: Shape, *, folds: bool
) -> Float[Array, "B M D"]:
    """What was read, through what is left of the attention."""
    if folds:
        batch, width = found.shape[0], attention.out.shape[0]
        _, value = _by_head(attention, shape)
        by_head = found.reshape(batch, shape.num_heads, -1, width)
        found = product("BNMD,DNH->BNMH", by_head, value)
    return times(merge_heads(found), attention.out)


def _by_head(
    attention: PackedAttention, shape: Shape
) -> tuple[Float[Array, "D N H"], Float[Array, "D N H"]]:
    """The key matrix and the value matrix."""
    width = attention.out.shape[0]
    key, value = jnp.split(jnp.asarray(attention.key_value), 2, axis=1)
    by_head = (width, shape.num_heads, width // shape.num_heads)
    return key.reshape(by_head), value.reshape(by_head)


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

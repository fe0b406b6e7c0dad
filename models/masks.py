"""Attention masks: two primitives and their composition; True means "may attend".

Axis letters: B batch, T query position, S key position.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention".
"""

import functools
import operator

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def padding_mask(lengths: Int[Array, " B"], size: int) -> Bool[Array, "B 1 S"]:
    """True at the keys that a row of ``lengths`` really has, for ``size`` key positions."""
    return (jnp.arange(size)[None, :] < lengths[:, None])[:, None, :]


def causal_mask(size: int) -> Bool[Array, "1 T T"]:
    """True at the keys at or before each query."""
    return jnp.tril(jnp.ones((size, size), dtype=bool))[None]


def combine_masks(*masks: Bool[Array, "#B #T #S"]) -> Bool[Array, "#B #T #S"]:
    """True where every one of ``masks`` is, under broadcasting."""
    return functools.reduce(operator.and_, masks)

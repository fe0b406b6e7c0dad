"""Products with matrices of parameters, of float32 or bfloat16 numbers, summed in float32.

Whatever numbers are multiplied in, what comes out of a product is float32, and so are gradients:
numbers are rounded on their way into a product and nowhere else. Units that multiply bfloat16
numbers, as those of GPUs, TPUs and newer CPUs, sum in float32 anyway.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

# On the host while it is packed for inference, on a device otherwise.
Operand = Float[Array, "..."] | Float[np.ndarray, "..."]
Product = Float[Array, "..."]

_WIDE = "float32"


class _Way(NamedTuple):
    """How numbers are multiplied: see ``multiplied_in``."""

    dtype: str
    is_on_one_cpu: bool


_AS_IT_IS = _Way(_WIDE, is_on_one_cpu=False)
_way: ContextVar[_Way] = ContextVar("_way")


@contextmanager
def multiplied_in(dtype: Any, *, is_on_one_cpu: bool = False) -> Iterator[None]:
    """Has functions that are traced inside multiply float32 numbers in ``dtype``.

    XLA's fast products of bfloat16 numbers on a CPU, four times as fast as its others, take a left
    operand that is summed over its end alone. For one CPU device, which has to be said, gradients
    are made of such; several devices would send each other what they hold for that.
    """
    before = _way.set(_Way(jnp.dtype(dtype).name, is_on_one_cpu))
    try:
        yield
    finally:
        _way.reset(before)


def product(spec: str, first: Operand, second: Operand) -> Product:
    """``jnp.einsum`` of two operands, in float32.

    They are multiplied in the width of ``second``, or in that of ``multiplied_in`` if ``second`` is
    float32. Every letter of ``spec`` is in two of its three parts or in all, once in each.
    """
    way = _way.get(_AS_IT_IS)
    if second.dtype.name != _WIDE:
        way = way._replace(dtype=second.dtype.name)
    if way.dtype == _WIDE:
        return jnp.einsum(spec, first, second)
    return _narrow(spec, way, first, second)


def times(x: Float[Array, "*B D"], matrix: Operand) -> Float[Array, "*B _"]:
    """``x @ matrix``, in float32, over rows in one axis.

    The gradient of the matrix is one product then; over two axes, XLA copies both operands first.
    """
    rows = product("RD,DF->RF", x.reshape(-1, x.shape[-1]), matrix)
    return rows.reshape(*x.shape[:-1], -1)


def einsum_op(spec: str, inputs: Operand, kernel: Operand, **_: Any) -> Product:
    """``product`` for ``nnx.Einsum``, whose other settings are left at their defaults."""
    return product(spec, inputs, kernel)


def linear(num_inputs: int, num_outputs: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A layer without a bias that multiplies as ``times`` does."""
    return nnx.Linear(num_inputs, num_outputs, use_bias=False, dot_general=_dot_general, rngs=rngs)


def _dot_general(x: Array, kernel: Array, dimensions: Any, **_: Any) -> Product:
    return times(x, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _narrow(spec: str, way: _Way, first: Operand, second: Operand) -> Product:
    first, second = (jnp.asarray(operand, way.dtype) for operand in (first, second))
    return jnp.einsum(spec, first, second, preferred_element_type=jnp.float32)


def _forward(
    spec: str, way: _Way, first: Operand, second: Operand
) -> tuple[Product, tuple[Operand, Operand]]:
    return _narrow(spec, way, first, second), (first, second)


def _backward(
    spec: str, way: _Way, kept: tuple[Operand, Operand], gradient: Product
) -> tuple[Product, Product]:
    (first, second), (left, right, out) = kept, re.split(",|->", spec)
    of_first = _reordered(f"{out},{right}->{left}", way, gradient, second)
    of_second = _reordered(f"{left},{out}->{right}", way, first, gradient)
    return of_first.astype(first.dtype), of_second.astype(second.dtype)


_narrow.defvjp(_forward, _backward)


def _reordered(spec: str, way: _Way, first: Operand, second: Operand) -> Product:
    """The product; on one CPU, what the left operand is summed over comes to lie at its end."""
    if not way.is_on_one_cpu:
        return _narrow(spec, way, first, second)
    left, right, out = re.split(",|->", spec)
    # What begins the outcome is to be the left operand's, so that the outcome lies as it is.
    if next(letter for letter in out if (letter in left) != (letter in right)) in right:
        left, right, first, second = right, left, second, first
    ordered = "".join(sorted(left, key=lambda letter: letter not in out))
    if ordered != left:
        turned = jnp.einsum(f"{left}->{ordered}", jnp.asarray(first, way.dtype))
        # By itself, XLA would turn it back and multiply it as it was.
        first = with_layout_constraint(turned, Layout(major_to_minor=tuple(range(turned.ndim))))
    return _narrow(f"{ordered},{right}->{out}", way, first, second)

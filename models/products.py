"""Products with matrices of parameters, of float32 or bfloat16 numbers, summed in float32.

Whatever numbers are multiplied in, what comes out of a product is float32, and so are gradients:
numbers are rounded on their way into a product and nowhere else. Units that multiply bfloat16
numbers, as those of GPUs, TPUs and newer CPUs, sum in float32 anyway.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Float32

# On the host while it is packed for inference, on a device otherwise.
Operand = Float[Array, "..."] | Float[np.ndarray, "..."]

_WIDE = "float32"


class _Way(NamedTuple):
    """How numbers are multiplied: see ``multiplied_in``."""

    dtype: str
    is_on_one_cpu: bool


# One of JAX's, so that a function is compiled anew where it changes.
_way = jax.make_user_context(_Way(_WIDE, is_on_one_cpu=False))


@contextmanager
def multiplied_in(dtype: Any, *, is_on_one_cpu: bool = False) -> Iterator[None]:
    """Has functions that are traced inside multiply float32 numbers in ``dtype``.

    XLA's fast products on a CPU, which for bfloat16 are four times as fast as its others, take a
    left operand that is summed over its end alone. For one CPU device, which has to be said,
    operands are laid out so; several devices would send each other what they hold for that.
    """
    with _way(_Way(jnp.dtype(dtype).name, is_on_one_cpu)):
        yield


def product(spec: str, first: Operand, second: Operand) -> Float32[Array, "..."]:
    """``jnp.einsum`` of two operands, in float32.

    They are multiplied in the width of the one that is not float32, or in that of ``multiplied_in``
    if both are. Every letter of ``spec`` is in two of its three parts or in all, once in each.
    """
    way = _way.value
    for operand in (first, second):
        if operand.dtype.name != _WIDE:
            way = way._replace(dtype=operand.dtype.name)
    if way.dtype == _WIDE:
        return jnp.einsum(spec, first, second)
    return _by_rule(spec, way, first, second)


def unrounded(
    spec: str, first: Float32[Array, "..."], second: Float32[Array, "..."]
) -> Float32[Array, "..."]:
    """``product`` of states, as attention has them: whatever the width, they are not rounded."""
    way = _way.value._replace(dtype=_WIDE)
    if not way.is_on_one_cpu:
        return jnp.einsum(spec, first, second)
    return _by_rule(spec, way, first, second)


def times(
    x: Float[Array, "*B D"], matrix: Float[Array, "D F"] | Float[np.ndarray, "D F"]
) -> Float32[Array, "*B F"]:
    """``x @ matrix``, in float32, over rows in one axis.

    The gradient of the matrix is one product then; over two axes, XLA copies both operands first.
    """
    rows = product("RD,DF->RF", x.reshape(-1, x.shape[-1]), matrix)
    return rows.reshape(*x.shape[:-1], -1)


def einsum_op(
    spec: str, inputs: Operand, kernel: Operand, **settings: Any
) -> Float32[Array, "..."]:
    """``product`` for ``nnx.Einsum``.

    Raises:
        NotImplementedError: if a setting of ``jnp.einsum`` is not left alone.
    """
    _require_unset(settings)
    return product(spec, inputs, kernel)


def linear(num_inputs: int, num_outputs: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A layer without a bias that multiplies as ``times`` does."""
    return nnx.Linear(num_inputs, num_outputs, use_bias=False, dot_general=_dot_general, rngs=rngs)


def _dot_general(
    x: Array, kernel: Array, dimensions: Any, **settings: Any
) -> Float32[Array, "..."]:
    """``times`` for ``nnx.Linear``, which sums over the last axis and the first, and says so."""
    del dimensions
    _require_unset(settings)
    return times(x, kernel)


def _require_unset(settings: Mapping[str, Any]) -> None:
    if unusual := {name: value for name, value in settings.items() if value is not None}:
        raise NotImplementedError(f"expected products without settings, got {unusual}")


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _by_rule(spec: str, way: _Way, first: Operand, second: Operand) -> Float32[Array, "..."]:
    return _multiplied(spec, way, first, second)


def _forward(
    spec: str, way: _Way, first: Operand, second: Operand
) -> tuple[Float32[Array, "..."], tuple[Operand, Operand]]:
    return _multiplied(spec, way, first, second), (first, second)


def _backward(
    spec: str, way: _Way, kept: tuple[Operand, Operand], gradient: Float32[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    (first, second), (left, right, out) = kept, _parts(spec)
    # By itself, JAX would multiply the gradient as it is, in float32.
    of_first = _multiplied(f"{out},{right}->{left}", way, gradient, second)
    of_second = _multiplied(f"{left},{out}->{right}", way, first, gradient)
    return of_first.astype(first.dtype), of_second.astype(second.dtype)


_by_rule.defvjp(_forward, _backward)


def _multiplied(spec: str, way: _Way, first: Operand, second: Operand) -> Float32[Array, "..."]:
    """The product of both operands, rounded; on one CPU by a fast one."""
    first, second = (jnp.asarray(operand, way.dtype) for operand in (first, second))
    multiply = partial(jnp.einsum, preferred_element_type=jnp.float32)
    if not way.is_on_one_cpu:
        return multiply(spec, first, second)
    left, right, out = _parts(spec)
    # What begins the outcome is to be the left operand's, so that the outcome lies as it is.
    if next(letter for letter in out if (letter in left) != (letter in right)) in right:
        left, right, first, second = right, left, second, first
    ordered = "".join(sorted(left, key=lambda letter: (letter not in out, letter not in right)))
    if ordered != left:
        # By itself, XLA would turn it back and multiply it as it was.
        first = with_layout_constraint(
            jnp.einsum(f"{left}->{ordered}", first), Layout(major_to_minor=tuple(range(first.ndim)))
        )
    found = "".join([*(c for c in ordered if c in out), *(c for c in right if c not in left)])
    return jnp.einsum(f"{found}->{out}", multiply(f"{ordered},{right}->{found}", first, second))


def _parts(spec: str) -> list[str]:
    return re.split(",|->", spec)

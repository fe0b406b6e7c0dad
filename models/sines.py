"""Sines and cosines of large angles, for processors whose own take them one at a time.

XLA leaves both to the C library on a CPU, several nanoseconds each. Here the whole quarter turns
are taken off first, in three parts so that nothing is lost of a float32, and a polynomial does the
rest; all of that runs on many numbers at once, and both functions share most of it.

Source: the reduction is that of Cody and Waite (1980), "Software Manual for the Elementary
Functions", chapter 8; the polynomials meet (sin(x) / x - 1) / x^2 and (cos(x) - 1) / x^2 at the
Chebyshev nodes of the squares of 0..pi/4.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

# They add up to pi/2; the first two have 8 bits, so that 24 hold their products with whole numbers
# of up to 16.
QUARTER_TURN = (1.5703125, 0.000484466552734375, -6.397578378e-07)
# From the highest power of the square down.
SINE = (-1.95873871e-4, 8.33274594e-3, -0.166666647)
COSINE = (2.44631167e-5, -1.3887584e-3, 4.16666505e-2, -0.5)


def sine_and_cosine(
    angles: Float[Array, "*S"],
) -> tuple[Float[Array, "*S"], Float[Array, "*S"]]:
    """Both of float32 ``angles``, in radians up to 100,000, within 2e-7."""
    turns = jnp.round(angles * np.float32(2 / math.pi))
    rest = angles
    for part in QUARTER_TURN:
        rest = rest - turns * np.float32(part)
    square = rest * rest
    sine = rest + rest * square * _polynomial(SINE, square)
    cosine = 1 + square * _polynomial(COSINE, square)
    quarter = turns.astype(jnp.int32)
    is_odd = quarter % 2 == 1
    sines, cosines = jnp.where(is_odd, cosine, sine), jnp.where(is_odd, sine, cosine)
    return _turned(sines, quarter), _turned(cosines, quarter + 1)


def _turned(values: Float[Array, "*S"], quarter: Int32[Array, "*S"]) -> Float[Array, "*S"]:
    """``values``, with the other sign in the third and the fourth quarter of a turn."""
    return jnp.where(quarter % 4 >= 2, -values, values)


def _polynomial(coefficients: tuple[float, ...], x: Float[Array, "*S"]) -> Float[Array, "*S"]:
    total = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + np.float32(coefficient)
    return total

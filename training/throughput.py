"""How fast the devices multiply matrices, as a yardstick of a training step."""

import statistics
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

SIZE = 1024
NUM_REPEATS = 5


def matmul_peak(dtype: Any = jnp.float32) -> float:
    """Floating-point operations per second of a product of ``dtype``, in float32, on one device.

    The median of five products of 1024 x 1024 matrices. Virtual CPU devices share their cores, so
    that several together do less than several times as much.
    """
    multiply = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))
    matrix = jax.device_put(jnp.ones((SIZE, SIZE), dtype), jax.local_devices()[0])
    multiply(matrix, matrix).block_until_ready()
    times = []
    for _ in range(NUM_REPEATS):
        start = time.perf_counter()
        multiply(matrix, matrix).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * SIZE**3 / statistics.median(times)

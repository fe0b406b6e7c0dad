"""How fast the devices multiply matrices, as the yardstick of a training step."""

import statistics
import time

import jax
import jax.numpy as jnp

SIZE = 1024
NUM_REPEATS = 5


def matmul_peak() -> float:
    """Floating-point operations per second of a float32 matrix product, over all devices.

    The median of five products of 1024 x 1024 matrices on one device, times the devices. Virtual
    CPU devices share their cores, so there it is an upper bound.
    """
    multiply = jax.jit(jnp.matmul)
    matrix = jax.device_put(jnp.ones((SIZE, SIZE), jnp.float32), jax.local_devices()[0])
    multiply(matrix, matrix).block_until_ready()
    times = []
    for _ in range(NUM_REPEATS):
        start = time.perf_counter()
        multiply(matrix, matrix).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * SIZE**3 / statistics.median(times) * jax.device_count()

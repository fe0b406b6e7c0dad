"""How fast the devices multiply matrices, as a yardstick of a training step."""

import statistics
import time

import jax
import jax.numpy as jnp

SIZE = 1024
NUM_REPEATS = 5


def matmul_peak() -> float:
    """Floating-point operations per second of a float32 matrix product on one device.

    The median of five products of 1024 x 1024 matrices. Virtual CPU devices share their cores, so
    that several together do less than several times as much.
    """
    multiply = jax.jit(jnp.matmul)
    matrix = jax.device_put(jnp.ones((SIZE, SIZE), jnp.float32), jax.local_devices()[0])
    multiply(matrix, matrix).block_until_ready()
    times = []
    for _ in range(NUM_REPEATS):
        start = time.perf_counter()
        multiply(matrix, matrix).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * SIZE**3 / statistics.median(times)

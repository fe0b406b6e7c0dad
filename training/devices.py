"""Which devices a run has: all there are, virtual ones of one CPU, those of several processes."""

import logging
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

INITIALIZATION_TIMEOUT_S = 120
HEARTBEAT_TIMEOUT_S = 30
# Process 0 evaluates while the others already wait to leave together.
SHUTDOWN_TIMEOUT_S = 3600

logger = logging.getLogger(__name__)


class DevicesError(ValueError):
    """The devices that were asked for cannot be had."""


def split_cpu(num_devices: int) -> None:
    """Makes the CPU appear as several devices; to be called before anything is computed.

    Each device takes its share of the batch.
    """
    jax.config.update("jax_num_cpu_devices", num_devices)


def join_processes(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Joins the processes of a run, which then train one model over all their devices.

    Without a coordinator, this process is on its own. On clusters that JAX knows, "auto" finds
    everything out by itself.

    Raises:
        DevicesError: if only part of what is needed was given, or the id is none of 0..N-1.
    """
    if (coordinator, num_processes, process_id) == (None, None, None):
        return
    # JAX would otherwise swallow SIGTERM, which the training loop answers by saving.
    os.environ.setdefault("JAX_ENABLE_PREEMPTION_SERVICE", "0")
    if coordinator == "auto":
        jax.distributed.initialize()
        return
    if coordinator is None or num_processes is None or process_id is None:
        raise DevicesError(
            "expected --coordinator, --num-processes and --process-id together, or none of them"
        )
    if not 0 <= process_id < num_processes:
        raise DevicesError(f"--process-id: expected 0..{num_processes - 1}, got {process_id}")
    jax.distributed.initialize(
        coordinator_address=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        coordinator_bind_address=coordinator,
        initialization_timeout=INITIALIZATION_TIMEOUT_S,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_S,
    )


def devices_for(num_rows: int) -> list[Any]:
    """The most devices that ``num_rows`` rows divide over.

    Raises:
        DevicesError: if several processes take part and not all of their devices can.
    """
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if num_rows % n == 0)
    if count < len(devices):
        if jax.process_count() > 1:
            raise DevicesError(
                f"expected rows in a multiple of {len(devices)} devices, got {num_rows}"
            )
        logger.warning("%d rows divide over %d of %d devices", num_rows, count, len(devices))
    return devices[:count]


def threads_for(num_rows: int, wanted: int) -> int:
    """The most threads, up to ``wanted``, that ``num_rows`` rows divide over."""
    count = max(n for n in range(1, wanted + 1) if num_rows % n == 0)
    if count < wanted:
        logger.warning("%d rows divide over %d of %d threads", num_rows, count, wanted)
    return count


def pool_size_for(dtype: str, num_threads: int) -> int:
    """How many threads of XLA's pool there are best beside ``num_threads`` that share a batch.

    In half the width many matrices are rounded at once, and calls go on in the pool after that:
    with one thread there, those that do take turns (docs/decisions/0036-a-pool-for-bfloat16.md).
    """
    return 1 if dtype == "float32" else num_threads


def is_one_cpu(mesh: Mesh) -> bool:
    """Whether there is one device, a CPU, so that threads can share its batches."""
    return mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"


def data_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """The devices in one row, by default all of all processes, for data parallelism."""
    devices = devices or jax.devices()
    automatic = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((len(devices),), ("data",), axis_types=automatic, devices=devices)

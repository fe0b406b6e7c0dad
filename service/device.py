"""The device that models run on, and how many calls it runs at once.

On a CPU a call of a small model gains little from a second thread; two calls side by side, each in
a thread of its own, gain nearly everything. They share one device, one set of parameters and one
set of executables.
"""

from typing import Any

import jax

from models.cores import num_cores

AUTO = "auto"
# More calls at once than this, and the interpreter between them is what they wait for.
MAX_CALLS = 8
# What a call costs by itself, in rows: on a CPU about one, on an accelerator more than a batch.
CPU_CALL_COST_ROWS = 1.0
ACCELERATOR_CALL_COST_ROWS = 64.0


class DeviceError(ValueError):
    """The device that was asked for is not there."""


def find_device(kind: str) -> Any:
    """The first device of that kind: cpu, gpu or tpu; "auto" takes whatever JAX prefers.

    Raises:
        DeviceError: if there is none; the message says what there is.
    """
    try:
        return jax.devices(None if kind == AUTO else kind)[0]
    except RuntimeError as error:
        try:
            found = ", ".join(sorted({device.platform for device in jax.devices()}))
        except RuntimeError:
            raise DeviceError(f"device: expected a {kind}, got none: {error}") from None
        raise DeviceError(f"device: expected a {kind}, found only {found}") from None


def call_cost_rows(device: Any) -> float:
    """What a call costs by itself on that device, as a number of rows that take as long."""
    return CPU_CALL_COST_ROWS if device.platform == "cpu" else ACCELERATOR_CALL_COST_ROWS


def num_calls(device: Any, wanted: int) -> int:
    """How many calls are to run at once on ``device``; ``wanted`` says it, or 0 leaves it to us."""
    if device.platform != "cpu":
        return wanted or 1
    return wanted or min(num_cores(), MAX_CALLS)


def reserve(kind: str) -> Any:
    """Has this process start no other device than it needs, and gives the one that it uses.

    JAX would take most of a GPU's memory even for a process that computes on the CPU.

    Raises:
        DeviceError: if there is no such device.
    """
    if kind == "cpu":
        jax.config.update("jax_platforms", "cpu")
    return find_device(kind)

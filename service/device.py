"""The device that models run on."""

from typing import Any

import jax

AUTO = "auto"


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


def reserve(kind: str) -> Any:
    """Has this process start no other device than it needs, and gives the one that it uses.

    JAX would take most of a GPU's memory even for a process that computes on the CPU.

    Raises:
        DeviceError: if there is no such device.
    """
    if kind == "cpu":
        jax.config.update("jax_platforms", "cpu")
    return find_device(kind)

"""Bundles as they come from disk: read onto the device and checked, not compiled yet."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from models.checkpoint import Bundle, CheckpointError, flatten, load_model
from service.device import find_device


class ReadBundle(NamedTuple):
    """A bundle, with what its ``model.json`` held before the rest was read, and its pictures."""

    content: bytes
    bundle: Bundle
    plots: dict[str, bytes]


def read_card(path: Path) -> bytes:
    """What the ``model.json`` of a bundle holds.

    Raises:
        CheckpointError: if it cannot be read.
    """
    try:
        return (path / "model.json").read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected a readable model.json: {error.strerror}"
        ) from error


def read_bundle(name: str, path: Path, device: str) -> ReadBundle:
    """The bundle of the model ``name`` in ``path``, its parameters on a device.

    Raises:
        CheckpointError: if it cannot be loaded whole, is another model, or holds NaN or infinity.
    """
    content = read_card(path)
    bundle = load_model(path, jax.sharding.SingleDeviceSharding(find_device(device)))
    found, expected = f"{bundle.card.name}/{bundle.card.version}", f"{name}/{path.name}"
    if found != expected:
        raise CheckpointError(f"{path}: expected the model {expected}, got {found}")
    _require_finite(bundle, path)
    plots = {file.name: file.read_bytes() for file in sorted((path / "plots").glob("*.png"))}
    return ReadBundle(content, bundle, plots)


def _require_finite(bundle: Bundle, path: Path) -> None:
    leaves = flatten(nnx.state(bundle.model, nnx.Param))
    wrong = sorted(n for n, leaf in leaves.items() if not np.isfinite(jax.device_get(leaf)).all())
    if wrong:
        raise CheckpointError(
            f"{path}: expected finite parameters, got NaN or infinity in {', '.join(wrong)}"
        )

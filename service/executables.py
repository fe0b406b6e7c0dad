"""Executables kept on disk, so that a second start neither traces nor compiles.

JAX's own cache answers the compiler; what leads up to the compiler, tracing Python into a program,
takes longer than that. Here the whole executable is kept, under a digest of everything that it
follows from: our code, the model's shape, the libraries, the device. Reading one runs what is in
it, so files lie where only their owner writes (``compilation.cache_directory`` sees to that); a
digest in front of the content tells damaged ones.
"""

import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import pickle
import tempfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from models.checkpoint import ModelCard
from models.cores import POOL_SIZE
from service.compilation import LOADED

logger = logging.getLogger(__name__)

ROOMS = ("models", "service")
LIBRARIES = ("jax", "jaxlib", "flax", "numpy")
DIGEST_BYTES = 32
# Fast, and what the machine code of small programs shrinks to a quarter by.
COMPRESSION_LEVEL = 1


class Executables:
    """The executables of one device in a directory; without one, nothing is kept."""

    def __init__(self, directory: Path | None, device: Any = None) -> None:
        self._directory = directory
        self._device = device

    def key(self, card: ModelCard, *shape: Any) -> str:
        """What tells an executable of that model, named by the parts of ``shape``, from others."""
        told = [_origin(), str(self._device), _model(card), *shape]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def holds(self, key: str) -> bool:
        """Whether something is kept under that key, which ``load`` may yet find to be no good."""
        return self._directory is not None and (self._directory / key).is_file()

    def load(self, key: str) -> Any | None:
        """The executable that was kept under that key, ready to be called; None if none was."""
        if self._directory is None:
            return None
        path = self._directory / key
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, packed = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(packed).digest() != digest:
            logger.warning("%s is damaged and is compiled anew", key)
            return None
        try:
            executable = serialize_executable.deserialize_and_load(
                *pickle.loads(zlib.decompress(packed)),
                backend=self._device.client,
                execution_devices=[self._device],
            )
        # Whatever this library says of what another one wrote, compiling anew always works.
        except Exception as error:  # noqa: BLE001
            logger.warning("%s cannot be loaded and is compiled anew: %s", key, error)
            return None
        jax.monitoring.record_event(LOADED)
        return executable

    def keep(self, key: str, compiled: jax.stages.Compiled) -> bool:
        """Keeps an executable for the next start, and says whether it could; if not, logs why."""
        if self._directory is None:
            return False
        try:
            content = pickle.dumps(serialize_executable.serialize(compiled))
            packed = zlib.compress(content, COMPRESSION_LEVEL)
            _write(self._directory / key, hashlib.sha256(packed).digest() + packed)
        # Some devices cannot give their executables out; disks fill up.
        except Exception as error:  # noqa: BLE001
            logger.warning("an executable is not kept for the next start: %s", error)
            return False
        return True


NOTHING_KEPT = Executables(None)


def _write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, whoever else writes it at the same time."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as scratch:
        staged = Path(scratch) / path.name
        staged.write_bytes(content)
        os.replace(staged, path)


@functools.cache
def _origin() -> str:
    """A digest of what turns a model into an executable: code, libraries, options of XLA."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for room in ROOMS:
        for file in sorted((root / room).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    options = [os.environ.get(name, "") for name in ("XLA_FLAGS", POOL_SIZE)]
    digest.update("\0".join([*versions, *options]).encode())
    return digest.hexdigest()


def _model(card: ModelCard) -> dict[str, Any]:
    """What of a card decides what is computed: not its parameters, which are arguments."""
    fields = asdict(card)
    names = ("wiring", "config", "limits", "task", "vocabulary", "target_vocabulary")
    return {name: fields[name] for name in names}

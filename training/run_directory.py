"""A training run on disk: what it is, its metrics, and states to go on from.

``run.json`` says what is being trained, so that a run is taken up by the same recipe or not at
all; ``metrics.jsonl`` has one record a step, and ``tensorboard/`` the same for that viewer where
its extra is installed; ``state/`` holds the last two saved states, each of which appears whole or
not at all (Orbax writes aside and renames). Several processes share one directory; the first of
them writes.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, TextIO

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from training import tensorboard
from training.step import TrainState

NUM_KEPT = 2


class RunError(ValueError):
    """A run cannot be started or taken up in that directory."""


class RunDirectory:
    """One run's directory, opened for a new run or to go on.

    Raises:
        RunError: if it holds an unfinished run that was neither to be resumed nor replaced, or
            there is none to resume, or that one is of another recipe.
        OSError: if it cannot be written.
    """

    def __init__(
        self, path: Path, description: dict[str, Any], *, resume: bool, replace: bool
    ) -> None:
        self.path = path
        self._description = description
        previous = _read(path / "run.json")
        wait_for_all("the description was read")
        if resume:
            _require_same(path, previous, description)
        elif previous and not previous["finished"] and not replace:
            raise RunError(
                f"{path} holds an unfinished run; take it up with --resume, replace it with "
                "--replace, or name another directory with --run-dir"
            )
        elif jax.process_index() == 0:
            for old in ("state", tensorboard.DIRECTORY):
                shutil.rmtree(path / old, ignore_errors=True)
            (path / "metrics.jsonl").unlink(missing_ok=True)
        path.mkdir(parents=True, exist_ok=True)
        self._mark(finished=False)
        self._manager = ocp.CheckpointManager(
            (path / "state").resolve(),
            options=ocp.CheckpointManagerOptions(max_to_keep=NUM_KEPT, create=True),
        )

    def _mark(self, *, finished: bool) -> None:
        if jax.process_index() == 0:
            staged = self.path / "run.json.part"
            staged.write_text(json.dumps({**self._description, "finished": finished}, indent=2))
            os.replace(staged, self.path / "run.json")

    def restore(self, state: TrainState) -> tuple[int, TrainState]:
        """The last saved step and its state, placed as ``state`` is; (0, ``state``) if none was."""
        step = self._manager.latest_step()
        if step is None:
            return 0, state
        leaves, tree = jax.tree.flatten(state)
        wanted = {
            str(i): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for i, leaf in enumerate(leaves)
        }
        saved = self._manager.restore(step, args=ocp.args.StandardRestore(wanted))
        return step, jax.tree.unflatten(tree, [saved[str(i)] for i in range(len(leaves))])

    def save(self, step: int, state: TrainState) -> None:
        """Saves ``state`` as that of ``step``, whole before this returns."""
        if step == self._manager.latest_step():
            return
        leaves = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(state))}
        self._manager.save(step, args=ocp.args.StandardSave(leaves))
        self._manager.wait_until_finished()

    def open_metrics(self) -> TextIO:
        """The file of records, to be added to; of several processes only the first keeps them."""
        path = self.path / "metrics.jsonl" if jax.process_index() == 0 else Path(os.devnull)
        return path.open("a", encoding="utf-8")

    def records(self, num_steps: int) -> list[dict[str, Any]]:
        """The records of the first ``num_steps`` steps; later ones are dropped from the file."""
        path = self.path / "metrics.jsonl"
        if num_steps == 0:
            if jax.process_index() == 0:
                path.unlink(missing_ok=True)
            return []
        lines = path.read_text(encoding="utf-8").splitlines()[:num_steps]
        if len(lines) < num_steps:
            raise RunError(f"{path}: expected records of {num_steps} steps, got {len(lines)}")
        if jax.process_index() == 0:
            staged = path.with_suffix(".part")
            staged.write_text("\n".join(lines) + "\n", encoding="utf-8")
            os.replace(staged, path)
        return [json.loads(line) for line in lines]

    def finish(self) -> None:
        """Says that the run is over: its bundle is written, so its states are dropped."""
        self._manager.close()
        if jax.process_index() == 0:
            shutil.rmtree(self.path / "state", ignore_errors=True)
        self._mark(finished=True)

    def close(self) -> None:
        """Lets go of the directory; the run can be resumed."""
        self._manager.close()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunError(f"{path}: expected JSON: {error}") from error


def _require_same(path: Path, previous: dict[str, Any] | None, description: dict[str, Any]) -> None:
    if previous is None:
        raise RunError(f"{path}: expected a run to resume, found none")
    if previous["finished"]:
        raise RunError(f"{path}: expected an unfinished run to resume, found a finished one")
    # Through JSON, so that tuples compare with the lists that they were written as.
    wanted = json.loads(json.dumps(description))
    different = [
        f"{name} is {wanted.get(name)!r} but was {previous.get(name)!r}"
        for name in sorted((wanted.keys() | previous.keys()) - {"finished"})
        if wanted.get(name) != previous.get(name)
    ]
    if different:
        raise RunError(
            f"{path}: expected the recipe that the run began with: " + "; ".join(different)
        )


def wait_for_all(reached: str) -> None:
    """Lets no process go on before every process of the run has reached this point."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(reached)


def require_writable(directory: Path, num_bytes: int = 0) -> None:
    """Makes sure that ``directory`` exists, takes files and has room for ``num_bytes``.

    Raises:
        OSError: if not.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):
        pass
    free = shutil.disk_usage(directory).free
    if free < num_bytes:
        raise OSError(f"{directory}: expected {num_bytes} free bytes, got {free}")

"""The training loop: steps, metrics and saved states, then figures, plots and a bundle."""

import dataclasses
import importlib.metadata
import itertools
import json
import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from tqdm import tqdm

from models.allocator import Hoard
from models.checkpoint import ModelCard, num_params, save_model
from models.directories import find_bundles
from models.wirings import WIRINGS
from training import plots
from training.card import write_model_card
from training.devices import data_mesh, devices_for, is_one_cpu
from training.ragged import padding_share
from training.recipe import Figures, Recipe
from training.run_directory import RunDirectory, require_writable
from training.step import Batch, Trainer
from training.tensorboard import scalars
from training.throughput import matmul_peak

SHARED_FIELDS = {"name", "corpus", "others", "vocabulary", "config", "optimization", "seed"}
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# Parameters and two moments in float32, kept twice and a third time while saving, and the bundle.
BYTES_PER_PARAM = 4 * (3 * 3 + 1)

logger = logging.getLogger(__name__)


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step and why."""


class Interrupted(Exception):
    """A signal ended the run after its state was saved; ``signal_number`` is which."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped by a signal after step {step}; go on with --resume")
        self.signal_number = signal_number


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where a run reads and writes, and how it runs; only ``dtype`` changes what is learned.

    ``dtype`` is what the model computes in; a state is saved every ``save_every`` steps. One CPU
    computes in ``num_threads`` threads, each with a share of the batch.
    """

    command: str
    preset: str
    out: Path
    run_directory: Path
    resume: bool = False
    replace: bool = False
    save_every: int = 500
    dtype: str = "float32"
    num_threads: int = 1


def train(recipe: Recipe, options: RunOptions) -> Path | None:
    """Trains, evaluates and saves; gives the directory of the bundle, a new version.

    Of several processes, the first evaluates and saves; the others get None.

    Raises:
        TrainingError: if the loss stops being a finite number.
        Interrupted: if a signal asked to stop.
        RunError: if the run's directory does not fit.
        OSError: if a directory cannot be written or has no room, before anything is trained.
    """
    identity = recipe.identity()
    optimization = recipe.optimization
    num_rows = optimization.batch_size // optimization.num_microbatches
    mesh = data_mesh(devices_for(num_rows))
    num_threads = options.num_threads if is_one_cpu(mesh) else 1
    model = WIRINGS[identity.wiring].model(identity.config, rngs=nnx.Rngs(recipe.seed))
    for directory in (options.out, options.run_directory):
        require_writable(directory, BYTES_PER_PARAM * num_params(model))
    run = RunDirectory(
        options.run_directory,
        describe(recipe, options),
        resume=options.resume,
        replace=options.replace,
    )
    try:
        trainer = Trainer(
            model,
            recipe.loss,
            optimization,
            mesh=mesh,
            dtype=options.dtype,
            num_threads=num_threads,
        )
        taken = run_steps(recipe, trainer, run, options.save_every)
        bundle = None
        if jax.process_index() == 0:
            how = {
                "seconds": round(taken.seconds, 1),
                "num_devices": mesh.size,
                "num_threads": num_threads,
            }
            bundle = write_bundle(recipe, options, trainer.model, taken, how)
    except BaseException:
        run.close()
        raise
    run.finish()
    return bundle


def describe(recipe: Recipe, options: RunOptions) -> dict[str, Any]:
    """What a run is: all that decides what is learned."""
    identity = recipe.identity()
    return {
        "name": identity.name,
        "preset": options.preset,
        "seed": recipe.seed,
        "dtype": options.dtype,
        "config": dataclasses.asdict(identity.config),
        "optimization": dataclasses.asdict(recipe.optimization),
        "settings": settings_of(recipe),
        "corpus": identity.corpus,
    }


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """What a recipe has beyond what every recipe has: how it masks, which lengths it draws."""
    return {
        field.name: getattr(recipe, field.name)
        for field in dataclasses.fields(recipe)
        if field.name not in SHARED_FIELDS
    }


class Taken(NamedTuple):
    """All steps of a run: their losses, their seconds without breaks, their share of padding."""

    losses: list[float]
    seconds: float
    padding_share: float


def run_steps(recipe: Recipe, trainer: Trainer, run: RunDirectory, save_every: int) -> Taken:
    """Takes the steps of the recipe that the run has not yet taken; tells of all of them."""
    done, trainer.state = run.restore(trainer.state)
    records = run.records(done)
    losses = [record["loss"] for record in records]
    padding = [record.get("padding_share", 0.0) for record in records]
    seconds_before = records[-1]["seconds"] if records else 0.0
    total = recipe.optimization.num_steps
    peak = matmul_peak(trainer.dtype) * trainer.mesh.size * trainer.num_threads
    hoard = Hoard()
    started = time.monotonic()
    with (
        stop_signals() as stopped,
        run.open_metrics() as metrics,
        scalars(run.path, done, enabled=jax.process_index() == 0) as write_scalars,
        tqdm(
            total=total,
            initial=done,
            desc=recipe.identity().name,
            unit="step",
            mininterval=1,
            disable=jax.process_index() > 0,
        ) as bar,
    ):
        for batches in dispatches(recipe, done):
            before = time.monotonic()
            new = trainer.run(batches)
            seconds = time.monotonic() - before
            share = trainer.flops(batches) * len(batches) / seconds / peak
            hoard.check()
            for loss, batch in zip(new, batches, strict=True):
                losses.append(float(loss))
                padding.append(padding_share(batch))
                record = {
                    "step": len(losses),
                    "loss": float(loss),
                    "steps_per_s": len(new) / seconds,
                    "share_of_matmul_peak": share,
                    "padding_share": padding[-1],
                    "seconds": seconds_before + time.monotonic() - started,
                }
                metrics.write(json.dumps(record) + "\n")
                write_scalars(record)
            metrics.flush()
            _require_finite(losses, len(new), run.path)
            bar.set_postfix(loss=f"{losses[-1]:.3f}", peak=f"{share:.0%}", refresh=False)
            bar.update(len(new))
            step = len(losses)
            number = _agreed(stopped[-1] if stopped else 0)
            if number or step == total or step // save_every > (step - len(new)) // save_every:
                run.save(step, trainer.state)
            if number and step < total:
                raise Interrupted(step, number)
    seconds_in_all = seconds_before + time.monotonic() - started
    return Taken(losses, seconds_in_all, float(np.mean(padding)))


def dispatches(recipe: Recipe, done: int) -> Iterator[list[Batch]]:
    """The batches after the first ``done``, in groups of one shape that are dispatched together.

    Groups begin at multiples of ``steps_per_dispatch``, wherever a run was taken up.
    """
    width = recipe.optimization.steps_per_dispatch
    total = recipe.optimization.num_steps
    for first in range(done - done % width, total, width):
        steps = range(max(first, done), min(first + width, total))
        batches = (recipe.batch(step) for step in steps)
        for _, group in itertools.groupby(batches, key=_shapes):
            yield list(group)


def _shapes(batch: Batch) -> list[tuple[int, ...]]:
    return [values.shape for values in batch.values()]


def _require_finite(losses: list[float], num_new: int, path: Path) -> None:
    for step in range(len(losses) - num_new, len(losses)):
        if not math.isfinite(losses[step]):
            raise TrainingError(
                f"step {step + 1}: expected a finite loss, got {losses[step]}; a lower learning "
                f"rate or gradient clipping may help. No bundle was written; {path} has the "
                "metrics and the last good state"
            )


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that receives SIGTERM and SIGINT while the context lasts.

    They no longer end the process, so that the loop can finish its step and save; a second one
    acts as usual.
    """
    received: list[int] = []
    previous = {}

    def receive(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(number, previous[number])

    for number in (signal.SIGTERM, signal.SIGINT):
        previous[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _agreed(signal_number: int) -> int:
    """The largest signal number that any process received, so that all stop at the same step."""
    if jax.process_count() == 1:
        return signal_number
    return int(multihost_utils.process_allgather(np.array(signal_number)).max())


def write_bundle(
    recipe: Recipe,
    options: RunOptions,
    model: nnx.Module,
    taken: Taken,
    how: dict[str, Any],
) -> Path:
    """Evaluates the model and writes its bundle with figures, plots and card.

    ``how`` goes into the recipe that the bundle tells of.
    """
    identity = recipe.identity()
    logger.info("evaluating %s", identity.name)
    figures = {
        **recipe.training_figures(taken.losses),
        "padding_share": taken.padding_share,
        **recipe.evaluate(model),
    }
    card = ModelCard(
        name=identity.name,
        version=next_version(options.out, identity.name),
        created=int(time.time()),
        wiring=identity.wiring,
        config=dataclasses.asdict(identity.config),
        vocabulary=identity.vocabulary,
        target_vocabulary=identity.target_vocabulary,
        limits=identity.limits,
        task=identity.task,
        recipe={
            "command": options.command,
            "preset": options.preset,
            "seed": recipe.seed,
            "dtype": options.dtype,
            "optimization": dataclasses.asdict(recipe.optimization),
            "settings": settings_of(recipe),
            "device": jax.devices()[0].device_kind,
            **how,
        },
        corpus=identity.corpus,
        library_versions={name: importlib.metadata.version(name) for name in LIBRARIES},
        figures=figures,
    )

    def illustrate(bundle: Path) -> None:
        plots.loss_curve(bundle / "plots" / "loss_curve.png", taken.losses)
        recipe.plot(model, figures, bundle / "plots")
        write_model_card(bundle)

    return save_model(options.out, card, model, complete=illustrate)


def next_version(root: Path, name: str) -> int:
    """One more than the highest version of ``name`` under ``root``, from 1."""
    bundle = find_bundles(root).get(name)
    return int(bundle.name) + 1 if bundle else 1


def show(figures: Figures, indent: str = "") -> str:
    """Figures as lines of text; long lists are left to the plots."""
    lines = []
    for key, value in figures.items():
        lines += _show_one(key, value, indent)
    return "\n".join(lines)


def _show_one(key: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, dict):
        return [f"{indent}{key}:", show(value, indent + "  ")]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [f"{indent}{key}:", *(show(item, indent + "  ") for item in value)]
    if isinstance(value, list) and len(value) > 8:
        return [f"{indent}{key}: {len(value)} values, see model.json and plots/"]
    if isinstance(value, float):
        return [f"{indent}{key}: {value:.4f}"]
    return [f"{indent}{key}: {value}"]

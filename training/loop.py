"""The training loop: steps with a progress bar and a metrics file, then a bundle with figures."""

import dataclasses
import importlib.metadata
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from tqdm import tqdm

from models.checkpoint import ModelCard, find_bundles, save_model
from models.wirings import WIRINGS
from training import plots
from training.card import write_model_card
from training.recipe import Figures, Recipe
from training.step import Trainer

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")

logger = logging.getLogger(__name__)


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step and why."""


def train(recipe: Recipe, preset: str, root: Path, run_directory: Path) -> Path:
    """Trains, evaluates and saves; gives the directory of the bundle, a new version under ``root``.

    Metrics are appended to ``run_directory``/metrics.jsonl step by step.

    Raises:
        TrainingError: if the loss stops being a finite number.
        OSError: if ``root`` or ``run_directory`` cannot be written, before anything is trained.
    """
    identity = recipe.identity()
    require_writable(root)
    require_writable(run_directory)
    model = WIRINGS[identity.wiring].model(identity.config, rngs=nnx.Rngs(recipe.seed))
    trainer = Trainer(model, recipe.loss, recipe.optimization.transformation())
    started = time.monotonic()
    losses = run_steps(recipe, trainer, run_directory / "metrics.jsonl")
    seconds = time.monotonic() - started
    logger.info("evaluating %s", identity.name)
    trained = trainer.model
    figures = {**recipe.training_figures(losses), **recipe.evaluate(trained)}
    card = ModelCard(
        name=identity.name,
        version=next_version(root, identity.name),
        created=int(time.time()),
        wiring=identity.wiring,
        config=dataclasses.asdict(identity.config),
        vocabulary=identity.vocabulary,
        limits=identity.limits,
        task=identity.task,
        recipe={
            "command": f"python -m training {identity.name} --preset {preset} --seed {recipe.seed}",
            "preset": preset,
            "seed": recipe.seed,
            "optimization": dataclasses.asdict(recipe.optimization),
            "seconds": round(seconds, 1),
            "device": jax.devices()[0].device_kind,
        },
        corpus=identity.corpus,
        library_versions={name: importlib.metadata.version(name) for name in LIBRARIES},
        figures=figures,
    )
    bundle = save_model(root, card, trained)
    plots.loss_curve(bundle / "plots" / "loss_curve.png", losses)
    recipe.plot(trained, figures, bundle / "plots")
    write_model_card(bundle)
    return bundle


def run_steps(recipe: Recipe, trainer: Trainer, metrics_path: Path) -> list[float]:
    """Takes every step of the recipe and gives the losses."""
    losses: list[float] = []
    started = time.monotonic()
    num_steps = recipe.optimization.num_steps
    with (
        metrics_path.open("w", encoding="utf-8") as metrics,
        tqdm(total=num_steps, desc=recipe.identity().name, unit="step", mininterval=1) as bar,
    ):
        for step in range(num_steps):
            loss = float(trainer.step(recipe.batch(step)))
            losses.append(loss)
            record = {"step": step + 1, "loss": loss, "seconds": time.monotonic() - started}
            metrics.write(json.dumps(record) + "\n")
            if not math.isfinite(loss):
                raise TrainingError(
                    f"step {step + 1}: expected a finite loss, got {loss}; a lower learning rate "
                    f"or gradient clipping may help. No bundle was written; see {metrics_path}"
                )
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()
    return losses


def require_writable(directory: Path) -> None:
    """Makes sure that ``directory`` exists and takes files.

    Raises:
        OSError: if not.
    """
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / ".writable"
    probe.touch()
    probe.unlink()


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

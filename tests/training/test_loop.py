import dataclasses
import itertools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from training import loop
from training.devices import data_mesh
from training.loop import (
    RunOptions,
    TrainingError,
    dispatches,
    next_version,
    run_steps,
    show,
    train,
)
from training.reversal import ReversalRecipe
from training.run_directory import RunDirectory, require_writable
from training.step import Objective, Trainer, TrainState


class Diverging(ReversalRecipe):
    """A recipe whose loss is no number once the first step is behind it."""

    def batch(self, step):
        batch = super().batch(step)
        factor = np.full(len(batch["source"]), 1 if step == 0 else math.nan, np.float32)
        return {**batch, "factor": factor}

    def loss(self, model, batch):
        total, num_counted = super().loss(model, batch)
        return Objective(total * batch["factor"].mean(), num_counted)


def options(root, run, **others):
    return RunOptions(command="", preset="debug", out=root, run_directory=run, **others)


@pytest.fixture(scope="module")
def diverging(recipes):
    recipe = recipes["reversal"]
    return Diverging(config=recipe.config, optimization=recipe.optimization)


def test_a_loss_that_is_no_number_stops_the_run_by_step_and_writes_no_bundle(diverging, tmp_path):
    root, run = tmp_path / "checkpoints", tmp_path / "run"
    with pytest.raises(TrainingError) as caught:
        train(diverging, options(root, run, save_every=1))
    message = str(caught.value)
    assert message.startswith("step 2: expected a finite loss, got nan")
    assert "No bundle was written" in message
    assert f"{run} has the metrics and the last good state" in message
    assert list(root.iterdir()) == []
    assert [path.name for path in (run / "state").iterdir()] == ["1"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2]
    assert math.isfinite(records[0]["loss"])
    assert math.isnan(records[1]["loss"])


@pytest.mark.parametrize("blocked", ["checkpoints", "run"])
def test_an_unwritable_directory_fails_before_anything_is_trained(
    recipes, tmp_path, monkeypatch, blocked
):
    def trained(*arguments):
        raise AssertionError("training began")

    monkeypatch.setattr(loop, "run_steps", trained)
    (tmp_path / blocked).write_text("a file, not a directory")
    with pytest.raises(OSError, match=blocked):
        train(recipes["reversal"], options(tmp_path / "checkpoints", tmp_path / "run"))


def test_a_probed_directory_is_made_and_left_empty(tmp_path):
    require_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_new_version_is_one_more_than_the_highest(tmp_path):
    assert next_version(tmp_path, "model") == 1
    for version in ("1", "9", "10"):
        (tmp_path / "model" / version).mkdir(parents=True)
        (tmp_path / "model" / version / "model.json").write_text("{}")
    assert next_version(tmp_path, "model") == 11
    assert next_version(tmp_path, "other") == 1


class Countdown(Trainer):
    """A trainer that only says how often it was asked."""

    def __init__(self):
        self.groups = []
        self.mesh = data_mesh()
        self.num_threads, self.dtype = 1, "float32"
        self.state = TrainState({"w": jnp.zeros(2)}, {})

    def run(self, batches):
        self.groups.append(batches)
        taken = sum(len(group) for group in self.groups)
        return np.arange(10.0 - taken + len(batches), 10.0 - taken, -1) - 1

    def flops(self, batches):
        return 1e9


def shortened(recipe, **fields):
    return dataclasses.replace(
        recipe, optimization=dataclasses.replace(recipe.optimization, **fields)
    )


def test_every_step_gets_its_own_batch_and_leaves_a_record(recipes, tmp_path):
    recipe = shortened(recipes["reversal"], num_steps=3)
    trainer = Countdown()
    run = RunDirectory(tmp_path, {}, resume=False, replace=False)
    losses, seconds_in_all, _ = run_steps(recipe, trainer, run, save_every=2)
    assert losses == [9.0, 8.0, 7.0]
    run.close()
    for step, (batch,) in enumerate(trainer.groups):
        assert (batch["source"] == recipe.batch(step)["source"]).all()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["step"], record["loss"]) for record in records] == [(1, 9), (2, 8), (3, 7)]
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= seconds_in_all
    assert all(record["steps_per_s"] > 0 for record in records)
    assert all(record["share_of_matmul_peak"] > 0 for record in records)
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["2", "3"]


def test_steps_are_dispatched_in_groups_of_one_shape_that_begin_at_multiples(recipes):
    recipe = shortened(recipes["reversal"], num_steps=8, steps_per_dispatch=3)
    assert [len(group) for group in dispatches(recipe, 0)] == [3, 3, 2]
    assert [len(group) for group in dispatches(recipe, 4)] == [2, 2]
    text = shortened(recipes["perceiver"], num_steps=40, steps_per_dispatch=4)
    groups = list(dispatches(text, 0))
    assert all(len({batch["inputs"].shape for batch in group}) == 1 for group in groups)
    for step, batch in enumerate(itertools.chain(*groups)):
        assert (batch["inputs"] == text.batch(step)["inputs"]).all()
    assert sum(map(len, groups)) == 40
    assert 1 < max(map(len, groups)) <= 4


def test_figures_are_shown_as_lines_and_long_lists_left_to_the_plots():
    figures = {
        "loss": 0.123456,
        "count": 3,
        "at": {"position_0": 2.0},
        "curve": [1.0] * 64,
        "probes": [{"text": "a", "share": 0.5}, {"text": "b", "share": 0.25}],
    }
    assert show(figures).splitlines() == [
        "loss: 0.1235",
        "count: 3",
        "at:",
        "  position_0: 2.0000",
        "curve: 64 values, see model.json and plots/",
        "probes:",
        "  text: a",
        "  share: 0.5000",
        "  text: b",
        "  share: 0.2500",
    ]

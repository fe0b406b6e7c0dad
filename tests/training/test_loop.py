import dataclasses
import json
import math

import jax.numpy as jnp
import pytest

from training import loop
from training.loop import TrainingError, next_version, require_writable, run_steps, show, train
from training.reversal import ReversalRecipe
from training.step import Trainer


class Diverging(ReversalRecipe):
    """A recipe whose loss is no number once the first step is behind it."""

    def batch(self, step):
        return {**super().batch(step), "factor": jnp.float32(1 if step == 0 else math.nan)}

    def loss(self, model, batch):
        return super().loss(model, batch) * batch["factor"]


@pytest.fixture(scope="module")
def diverging(recipes):
    recipe = recipes["reversal"]
    return Diverging(config=recipe.config, optimization=recipe.optimization)


def test_a_loss_that_is_no_number_stops_the_run_by_step_and_writes_no_bundle(diverging, tmp_path):
    root, run = tmp_path / "checkpoints", tmp_path / "run"
    with pytest.raises(TrainingError) as caught:
        train(diverging, "debug", root, run)
    message = str(caught.value)
    assert message.startswith("step 2: expected a finite loss, got nan")
    assert "No bundle was written" in message
    assert str(run / "metrics.jsonl") in message
    assert list(root.iterdir()) == []
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
        train(recipes["reversal"], "debug", tmp_path / "checkpoints", tmp_path / "run")


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
        self.batches = []

    def step(self, batch):
        self.batches.append(batch)
        return 10.0 - len(self.batches)


def test_every_step_gets_its_own_batch_and_leaves_a_record(recipes, tmp_path):
    recipe = dataclasses.replace(
        recipes["reversal"],
        optimization=dataclasses.replace(recipes["reversal"].optimization, num_steps=3),
    )
    trainer = Countdown()
    losses = run_steps(recipe, trainer, tmp_path / "metrics.jsonl")
    assert losses == [9.0, 8.0, 7.0]
    for step, batch in enumerate(trainer.batches):
        assert (batch["source"] == recipe.batch(step)["source"]).all()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["step"], record["loss"]) for record in records] == [(1, 9), (2, 8), (3, 7)]
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds)


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

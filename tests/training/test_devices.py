"""One run is the same on one device, on many, in parts, in groups and in several processes."""

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.checkpoint import flatten
from models.wirings import WIRINGS
from training import cli
from training.devices import (
    DevicesError,
    data_mesh,
    devices_for,
    join_processes,
    threads_for,
)
from training.side_by_side import StepsSideBySide
from training.step import Optimization, Trainer, TrainState

ROOT = Path(__file__).parent.parent.parent
NUM_STEPS = 6
BASE = Optimization(num_steps=NUM_STEPS, batch_size=8, learning_rate=1e-3, max_grad_norm=1.0)
# The same float32 numbers, added in another order over a few steps.
ROUNDING = 2e-5
# bfloat16 keeps 8 bits: a loss of about 3 nats is good to about 0.02.
COARSE = 0.05
NAMES = ("masked-lm", "reversal", "perceiver", "causal-lm")


def trainer_of(recipe, *, num_devices=1, dtype="float32", num_threads=1, **fields):
    identity = recipe.identity()
    model = WIRINGS[identity.wiring].model(identity.config, rngs=nnx.Rngs(0))
    mesh = data_mesh(jax.devices()[:num_devices])
    optimization = dataclasses.replace(BASE, **fields)
    return Trainer(
        model, recipe.loss, optimization, mesh=mesh, dtype=dtype, num_threads=num_threads
    )


def eight_rows(recipe):
    return {k: np.resize(v, (8, *v.shape[1:])) for k, v in recipe.batch(0).items()}


def losses_of(recipe, *, width=1, **options):
    """The losses of a few steps on fixed rows, and the parameters after them."""
    trainer = trainer_of(recipe, **options)
    groups = [[eight_rows(recipe)] * width] * (NUM_STEPS // width)
    losses = np.concatenate([trainer.run(group) for group in groups])
    return losses, flatten(nnx.state(trainer.model, nnx.Param))


@pytest.fixture(scope="module")
def plain(recipes):
    """The losses and parameters of every recipe on one device, in float32, step by step."""
    with jax.numpy_dtype_promotion("standard"):
        return {name: losses_of(recipes[name]) for name in NAMES}


@pytest.mark.parametrize("name", ["masked-lm", "perceiver"])
def test_eight_devices_train_like_one(recipes, plain, name):
    eight, _ = losses_of(recipes[name], num_devices=8)
    np.testing.assert_allclose(eight, plain[name][0], atol=ROUNDING)


def test_gradients_added_up_over_parts_are_those_of_the_whole(recipes, plain):
    """Parts of the masked recipe hold different numbers of masks."""
    parts, _ = losses_of(recipes["masked-lm"], num_microbatches=4)
    np.testing.assert_allclose(parts, plain["masked-lm"][0], atol=ROUNDING)


def test_parts_and_devices_together_train_like_one_device(recipes, plain):
    parts, _ = losses_of(recipes["masked-lm"], num_devices=4, num_microbatches=2)
    np.testing.assert_allclose(parts, plain["masked-lm"][0], atol=ROUNDING)


@pytest.mark.parametrize("name", ["masked-lm", "perceiver"])
@pytest.mark.parametrize(("num_threads", "num_microbatches"), [(2, 1), (4, 2)])
def test_threads_that_share_a_batch_train_like_one(
    recipes, plain, name, num_threads, num_microbatches
):
    options = {"num_threads": num_threads, "num_microbatches": num_microbatches}
    shared, params = losses_of(recipes[name], **options)
    np.testing.assert_allclose(shared, plain[name][0], atol=ROUNDING)
    again, same = losses_of(recipes[name], **options)
    np.testing.assert_array_equal(again, shared)
    for leaf, other in zip(params.values(), same.values(), strict=True):
        np.testing.assert_array_equal(other, leaf)


@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_threads_count_the_work_of_the_whole_batch(recipes, num_microbatches):
    batches = [eight_rows(recipes["masked-lm"])]
    alone, shared = (
        trainer_of(recipes["masked-lm"], num_threads=count, num_microbatches=parts)
        for count, parts in ((1, 1), (2, num_microbatches))
    )
    assert shared.flops(batches) == 0
    for trainer in (alone, shared):
        trainer.run(batches)
    assert alone.flops(batches) > 1e6
    assert shared.flops(batches) == pytest.approx(alone.flops(batches), rel=0.05)


@pytest.mark.parametrize(
    ("num_rows", "wanted", "count"), [(64, 2, 2), (64, 3, 2), (9, 4, 3), (7, 4, 1), (1, 8, 1)]
)
def test_a_run_takes_the_most_threads_that_its_rows_divide_over(num_rows, wanted, count, caplog):
    assert threads_for(num_rows, wanted) == count
    assert bool(caplog.records) == (count < wanted)


@pytest.mark.parametrize(("dtype", "pool_size"), [("float32", 1), ("bfloat16", 2)])
def test_in_half_the_width_the_pool_has_a_thread_for_each_that_shares_a_batch(
    dtype, pool_size, monkeypatch
):
    told = []
    monkeypatch.setattr(cli, "run_calls_side_by_side", lambda size: told.append(size) or True)
    options = Namespace(cpu_devices=None, coordinator=None, cpu_threads=2, dtype=dtype)
    assert cli._num_threads(options, BASE) == 2
    assert told == [pool_size]


def test_threads_beside_several_devices_are_refused(recipes):
    with pytest.raises(DevicesError, match="num_threads: expected 1 beside"):
        trainer_of(recipes["masked-lm"], num_devices=2, num_threads=2)


def test_rows_that_do_not_divide_over_the_threads_are_refused(recipes):
    trainer = trainer_of(recipes["reversal"], num_threads=2)
    with pytest.raises(DevicesError, match="rows in a multiple of 2 threads, got 3"):
        trainer.run([{"source": recipes["reversal"].batch(0)["source"][:3]}])


def test_rows_that_do_not_divide_over_the_microbatches_are_refused(recipes):
    trainer = trainer_of(recipes["reversal"], num_threads=2, num_microbatches=2)
    wanted = "rows in a multiple of 4, for 2 threads of 2 microbatches each, got 6"
    with pytest.raises(DevicesError, match=wanted):
        trainer.run([{"source": recipes["reversal"].batch(0)["source"][:6]}])


@pytest.mark.parametrize(
    ("num_parts", "most_at_once", "rows_of_calls"),
    [
        pytest.param(1, 2**19, {16}, id="all of a share fits"),
        pytest.param(1, 2**17, {16, 4}, id="as many parts as fit"),
        pytest.param(2, 2**17, {8, 4}, id="parts are split further"),
        pytest.param(1, 1, {16, 1}, id="a row at a time where nothing fits"),
    ],
)
def test_a_share_is_worked_out_in_parts_that_fit(num_parts, most_at_once, rows_of_calls):
    seen = set()

    def gradient(params, batch):
        seen.add(len(batch["rows"]))
        # 4,096 numbers of 4 bytes for each row.
        return jnp.sum(jnp.sin(batch["rows"] @ params) @ params.T)

    random = np.random.default_rng(0)
    params, rows = (random.standard_normal(shape, np.float32) for shape in ((8, 4096), (32, 8)))
    steps = StepsSideBySide(
        gradient, lambda state, total: (state, total), 2, num_parts, most_at_once
    )
    _, (total,) = steps.run(TrainState(jnp.asarray(params), ()), [{"rows": rows}])
    assert seen == rows_of_calls
    assert total == pytest.approx(np.sum(np.sin(rows @ params) @ params.T), rel=1e-4)


def test_what_one_share_raises_ends_the_step():
    def gradient(params, rows):
        raise ZeroDivisionError

    steps = StepsSideBySide(gradient, lambda state, sums: (state, sums), 2)
    with pytest.raises(ZeroDivisionError):
        steps.run(TrainState({}, {}), [{"rows": np.zeros((2, 1), np.float32)}])


def test_threads_beside_a_coordinator_are_refused(command):
    several = ["--coordinator", "127.0.0.1:1", "--num-processes", 2, "--process-id", 0]
    status, _, told = command("reversal", "--preset", "debug", "--cpu-threads", 2, *several)
    assert status == 1
    assert "--cpu-threads: expected none beside --coordinator" in told


def test_steps_that_are_dispatched_together_are_the_same_steps(recipes, plain):
    single, params = plain["reversal"]
    grouped, same = losses_of(recipes["reversal"], width=3)
    np.testing.assert_allclose(grouped, single, atol=ROUNDING)
    for name, leaf in params.items():
        np.testing.assert_allclose(same[name], leaf, atol=ROUNDING)


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in NAMES]
    + [("masked-lm", {"num_devices": 8}), ("masked-lm", {"num_threads": 2})],
)
def test_bfloat16_learns_the_same_and_keeps_float32_parameters(recipes, plain, name, options):
    exact, _ = plain[name]
    coarse, params = losses_of(recipes[name], dtype="bfloat16", **options)
    np.testing.assert_allclose(coarse, exact, atol=COARSE)
    assert not np.array_equal(coarse, exact)
    assert {str(leaf.dtype) for leaf in params.values()} == {"float32"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_devices_send_each_other_sums_and_no_rows(recipes, dtype):
    trainer = trainer_of(recipes["masked-lm"], num_devices=4, dtype=dtype)
    trainer.run([eight_rows(recipes["masked-lm"])])
    (compiled,) = trainer._compiled.values()
    sent = set(re.findall(r" (all-\w+|collective-\w+|reduce-scatter)\(", compiled.as_text()))
    assert sent == {"all-reduce"}


def test_rows_that_do_not_divide_over_the_devices_are_refused(recipes):
    recipe = recipes["reversal"]
    model = WIRINGS["encoder-decoder"].model(recipe.config, rngs=nnx.Rngs(0))
    trainer = Trainer(model, recipe.loss, BASE, mesh=data_mesh())
    with pytest.raises(DevicesError, match="rows in a multiple of 8 devices, got 3"):
        trainer.run([{"source": recipe.batch(0)["source"][:3]}])


@pytest.mark.parametrize(
    ("num_rows", "count"), [(8, 8), (6, 6), (12, 6), (7, 7), (5, 5), (1, 1), (22, 2)]
)
def test_a_run_takes_the_most_devices_that_its_rows_divide_over(num_rows, count, caplog):
    assert devices_for(num_rows) == jax.devices()[:count]
    assert bool(caplog.records) == (count < 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("127.0.0.1:1", None, None), "--coordinator, --num-processes and --process-id together"),
        ((None, 2, 0), "--coordinator, --num-processes and --process-id together"),
        (("127.0.0.1:1", 2, 2), r"--process-id: expected 0\.\.1, got 2"),
        (("127.0.0.1:1", 2, -1), r"--process-id: expected 0\.\.1, got -1"),
    ],
)
def test_incomplete_processes_are_refused(given, message):
    with pytest.raises(DevicesError, match=message):
        join_processes(*given)


def test_one_process_joins_nobody():
    join_processes(None, None, None)
    assert jax.process_count() == 1


def run_processes(tmp_path, count):
    """Losses of a run of ``count`` processes of two devices each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    common = [sys.executable, "-m", "training", "reversal", "--preset", "debug"]
    common += ["--num-steps", "20", "--out", str(tmp_path), "--cpu-devices", "2"]
    common += ["--run-dir", str(tmp_path / f"run-{count}")]
    processes = []
    for index in range(count):
        several = ["--coordinator", coordinator, "--num-processes", str(count)]
        arguments = [*several, "--process-id", str(index)] if count > 1 else []
        processes.append(subprocess.Popen([*common, *arguments], cwd=ROOT, env=environment))
    try:
        assert [process.wait(timeout=240) for process in processes] == [0] * count
    finally:
        for process in processes:
            process.kill()
    lines = (tmp_path / f"run-{count}" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
def test_threads_of_the_command_train_like_one(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    losses = []
    for count in ("1", "2"):
        command = [sys.executable, "-m", "training", "reversal", "--preset", "debug"]
        command += ["--num-steps", "20", "--out", str(tmp_path), "--cpu-threads", count]
        command += ["--run-dir", str(tmp_path / f"run-{count}")]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=240)
        lines = (tmp_path / f"run-{count}" / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
        card = json.loads((tmp_path / "reversal" / count / "model.json").read_text())
        assert card["recipe"]["num_threads"] == int(count)
    np.testing.assert_allclose(losses[1], losses[0], atol=ROUNDING)


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path):
    np.testing.assert_allclose(
        run_processes(tmp_path, 2), run_processes(tmp_path, 1), atol=ROUNDING
    )
    assert sorted(path.name for path in (tmp_path / "reversal").iterdir()) == ["1", "2"]

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from training.run_directory import RunDirectory, RunError, require_writable
from training.step import TrainState

DESCRIPTION = {"name": "reversal", "seed": 0, "optimization": {"num_steps": 9}, "sizes": (1, 2)}


def opened(path, description=DESCRIPTION, *, resume=False, replace=False):
    return RunDirectory(path, description, resume=resume, replace=replace)


def state_of(value):
    return TrainState({"w": jnp.full((2, 3), value)}, (jnp.array(value), {"m": jnp.ones(4)}))


def record(run, *losses):
    lines = [json.dumps({"loss": loss}) for loss in losses]
    (run.path / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_a_new_run_has_nothing_to_restore(tmp_path):
    run = opened(tmp_path / "run")
    state = state_of(1.0)
    assert run.restore(state) == (0, state)
    assert run.records(0) == []
    run.close()


def test_what_was_saved_last_comes_back_bit_for_bit_and_where_it_was(tmp_path):
    run = opened(tmp_path)
    for step in (3, 6, 9):
        run.save(step, state_of(step / 7))
    run.close()
    run = opened(tmp_path, resume=True)
    step, state = run.restore(state_of(0.0))
    run.close()
    assert step == 9
    for got, saved in zip(jax.tree.leaves(state), jax.tree.leaves(state_of(9 / 7)), strict=True):
        np.testing.assert_array_equal(got, saved)
        assert got.sharding == saved.sharding
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["6", "9"]


def test_records_past_the_saved_state_are_dropped(tmp_path):
    run = opened(tmp_path)
    record(run, 3.0, 2.0, 1.0)
    assert run.records(2) == [{"loss": 3.0}, {"loss": 2.0}]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    with pytest.raises(RunError, match="expected records of 5 steps, got 2"):
        run.records(5)
    run.close()


def test_an_unfinished_run_is_not_overwritten_unless_that_is_asked_for(tmp_path):
    run = opened(tmp_path)
    run.save(3, state_of(1.0))
    run.close()
    with pytest.raises(RunError, match=r"unfinished run; take it up with --resume, replace it"):
        opened(tmp_path)
    run = opened(tmp_path, replace=True)
    assert run.restore(state_of(0.0))[0] == 0
    run.close()


def test_a_finished_run_makes_room_for_a_new_one_and_cannot_be_resumed(tmp_path):
    run = opened(tmp_path)
    run.save(9, state_of(1.0))
    run.finish()
    assert not (tmp_path / "state").exists()
    with pytest.raises(RunError, match="expected an unfinished run to resume, found a finished"):
        opened(tmp_path, resume=True)
    run = opened(tmp_path)
    assert run.restore(state_of(0.0))[0] == 0
    run.close()


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(RunError, match="expected a run to resume, found none"):
        opened(tmp_path, resume=True)


def test_a_run_is_resumed_by_its_own_recipe_only(tmp_path):
    opened(tmp_path).close()
    with pytest.raises(RunError, match="seed is 1 but was 0"):
        opened(tmp_path, {**DESCRIPTION, "seed": 1}, resume=True)
    opened(tmp_path, resume=True).close()


def test_a_damaged_description_is_told(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json: expected JSON"):
        opened(tmp_path)


def test_a_full_disk_is_told_before_anything_is_trained(tmp_path):
    with pytest.raises(OSError, match="expected 1000000000000000000 free bytes, got"):
        require_writable(tmp_path, 10**18)
    assert list(tmp_path.iterdir()) == []

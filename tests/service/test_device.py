import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from service import device
from service.device import DeviceError, find_device


@pytest.mark.parametrize("kind", ["auto", "cpu"])
def test_a_device_that_is_there_is_found(kind):
    assert find_device(kind) == jax.devices()[0]


@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_a_device_that_is_missing_is_an_error_that_says_what_there_is(kind):
    with pytest.raises(DeviceError, match=f"device: expected a {kind}, found only cpu"):
        find_device(kind)


def test_for_the_cpu_no_other_device_is_started(monkeypatch):
    told = []
    monkeypatch.setattr(jax.config, "update", lambda *change: told.append(change))
    device.reserve("auto")
    assert told == []
    assert device.reserve("cpu").platform == "cpu"
    assert told == [("jax_platforms", "cpu")]


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 4), ("200000 100000", 2), ("150000 100000", 2)]
)
def test_cores_are_those_that_the_process_may_use(quota, cores, monkeypatch, tmp_path):
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(device, "QUOTA", tmp_path / "cpu.max")
    assert device.num_cores() == 4
    device.QUOTA.write_text(f"{quota}\n", encoding="ascii")
    assert device.num_cores() == cores


def test_a_quota_below_one_core_is_one_core(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "QUOTA", tmp_path / "cpu.max")
    device.QUOTA.write_text("1000 100000\n", encoding="ascii")
    assert device.num_cores() == 1


@pytest.mark.parametrize(
    ("platform", "wanted", "calls"),
    [("cpu", 0, 4), ("cpu", 1, 1), ("cpu", 9, 9), ("gpu", 0, 1), ("tpu", 2, 2)],
)
def test_calls_at_once_are_as_many_as_cores_unless_they_are_chosen(
    platform, wanted, calls, monkeypatch
):
    monkeypatch.setattr(device, "num_cores", lambda: 4)
    assert device.num_calls(SimpleNamespace(platform=platform), wanted) == calls


def test_calls_at_once_are_not_endless_on_a_large_machine(monkeypatch):
    monkeypatch.setattr(device, "num_cores", lambda: 96)
    assert device.num_calls(SimpleNamespace(platform="cpu"), 0) == device.MAX_CALLS


def test_calls_run_side_by_side_unless_the_environment_says_how_many_threads(monkeypatch):
    told = []
    monkeypatch.setattr(jax.config, "update", lambda *change: told.append(change))
    monkeypatch.setenv(device.POOL_SIZE, "3")
    assert not device.run_calls_side_by_side()
    assert (os.environ[device.POOL_SIZE], told) == ("3", [])
    monkeypatch.delenv(device.POOL_SIZE)
    assert device.run_calls_side_by_side()
    assert (os.environ[device.POOL_SIZE], told) == ("1", [("jax_cpu_enable_async_dispatch", False)])


# What this is all for, in a process of its own, as the options hold for a process as a whole.
SIDE_BY_SIDE = """
from service import device

assert device.run_calls_side_by_side()
import jax
import jax.numpy as jnp

matrix = jnp.zeros((1024, 1024))
compiled = jax.jit(lambda x: x @ x @ x @ x).lower(matrix).compile()
assert all(compiled(matrix).is_ready() for _ in range(5))
"""


def test_a_call_is_done_when_it_returns_as_its_own_thread_has_computed_it():
    # As a service has it, without what tests set for themselves.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (device.POOL_SIZE, "XLA_FLAGS")
    }
    done = subprocess.run(
        [sys.executable, "-c", SIDE_BY_SIDE],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

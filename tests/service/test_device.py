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

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

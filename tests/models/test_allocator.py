import ctypes
import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np

from models.allocator import keep_memory

kept = {call}
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
size = 2**22
for _ in range(4):
    np.ones(size)
before = faults()
for _ in range(20):
    np.ones(size)
print(kept, (faults() - before) / 20)
"""


def run(call, **variables):
    """What ``call`` gives, and how many page faults a large array then takes to make."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC", "LD_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(call=call)],
        env=clean | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = done.stdout.split()
    return kept, float(faults)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="no glibc")
def test_memory_of_a_large_array_serves_the_next_one():
    # Huge pages, where the system has them, make few faults of many.
    assert run("None")[1] > 5
    kept, faults = run("keep_memory()")
    assert kept == "True"
    assert faults < 1


def test_an_environment_that_chooses_for_itself_is_left_alone():
    kept, _ = run("keep_memory()", MALLOC_ARENA_MAX="4")
    assert kept == "False"


def test_without_the_library_nothing_happens(monkeypatch):
    from models import allocator

    monkeypatch.setattr(allocator.os, "environ", {})
    for library in (OSError, lambda _: object()):
        monkeypatch.setattr(allocator.ctypes, "CDLL", refuse if library is OSError else library)
        assert not allocator.keep_memory()


def refuse(_):
    raise OSError("no such library")

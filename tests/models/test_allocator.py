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
        assert not allocator.give_back()


def refuse(_):
    raise OSError("no such library")


FREED = """
from pathlib import Path

from models.allocator import give_back, keep_memory

def resident():
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])

keep_memory()
# Small ones, with one at the end that keeps the heap from shrinking by itself.
blocks = [bytearray(10_000) for _ in range(20_000)]
last = bytearray(10_000)
full = resident()
del blocks
freed = resident()
print(give_back(), full - freed, freed - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="no glibc")
def test_what_is_free_is_given_back_when_it_is_asked_for():
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC", "LD_"))}
    done = subprocess.run(
        [sys.executable, "-c", FREED], env=clean, capture_output=True, text=True, check=True
    )
    has_given, kept, given = done.stdout.split()
    assert has_given == "True"
    # Of 200 MB, in pages of 4 KiB.
    assert int(kept) < 5_000
    assert int(given) > 40_000


SETTLED = """
import gc, weakref
from models.allocator import settle

class Ring:
    def __init__(self):
        self.itself = self

kept, lost = Ring(), Ring()
ids = id(kept), id(lost)
del lost
settle()
tracked = {id(thing) for thing in gc.get_objects()}
print(gc.get_freeze_count() > 1000, ids[0] in tracked, len(tracked) < 100)
put_aside = weakref.ref(kept)
del kept
settle(anew=False)
print(put_aside() is not None)
settle()
print(put_aside() is None)
new = Ring()
print(id(new) in {id(thing) for thing in gc.get_objects()})
print(sum(isinstance(thing, Ring) for thing in gc.get_objects()), gc.get_threshold()[0])
"""


def test_what_is_there_is_not_looked_through_again_and_what_comes_is():
    done = subprocess.run(
        [sys.executable, "-c", SETTLED], capture_output=True, text=True, check=True
    )
    told = ["True", "False", "True", "True", "True", "True", "1", "10000"]
    assert done.stdout.split() == told


@pytest.mark.parametrize(("asked", "heaps"), [((), 1), ((3,), 3)])
def test_there_are_as_many_heaps_as_are_asked_for(monkeypatch, asked, heaps):
    from models import allocator

    told = {}

    class Library:
        def mallopt(self, name, value):
            told[name] = value
            return 1

    monkeypatch.setattr(allocator.os, "environ", {})
    monkeypatch.setattr(allocator, "_glibc", Library)
    assert allocator.keep_memory(*asked)
    assert told == {allocator.MAX_HEAPS: heaps, **allocator.OPTIONS}


@pytest.mark.parametrize(
    ("held", "given_back"),
    [
        ([100, 150, 200], []),
        ([100, 201, 110, 250], [201, 250]),
        # What is needed again at once is no hoard: it would be given back at every call.
        ([100, 300, 290, 300, 580, 581], [300, 581]),
        ([100, 300, 40, 201], [300, 201]),
        ([0, 0, 0], []),
    ],
)
def test_a_hoard_is_given_back_where_it_is_twice_what_is_usual(held, given_back, monkeypatch):
    """Where nobody tells how much is held, nothing is."""
    from models import allocator

    monkeypatch.setattr(allocator, "_resident_pages", iter(held).__next__)
    monkeypatch.setattr(allocator, "give_back", lambda: True)
    hoard = allocator.Hoard()
    assert [pages for pages in held if hoard.check()] == given_back


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_what_a_process_holds_is_read_in_pages():
    from models import allocator

    before = allocator._resident_pages()
    kept = b"x" * 2**26
    grown = allocator._resident_pages() - before
    assert grown * os.sysconf("SC_PAGE_SIZE") == pytest.approx(len(kept), rel=0.1)

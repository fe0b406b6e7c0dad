"""How memory is kept: by the C library for compiled functions on a CPU, by Python for objects.

Large arrays that live for one call are mapped from the system and given back on every call, which
can take longer than computing with them; and every thread of XLA that ever allocates keeps a heap
of its own. As many heaps as suit the process, which are kept, cost neither.
"""

import ctypes
import gc
import os
from pathlib import Path
from typing import Any

# Parameters of mallopt(3) in glibc, with what they are set to.
MAX_HEAPS = -8  # M_ARENA_MAX
OPTIONS = {
    -4: 0,  # M_MMAP_MAX: nothing is mapped by itself.
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD, in bytes: nothing is given back.
    -2: 2**26,  # M_TOP_PAD, in bytes: how much is taken from the system at a time.
}
# How many times as much as is usual a process may hold.
HOARD = 2
# Whoever sets one of these has thought about it.
PREFIXES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
# How many more objects there must be before Python looks for garbage in them; by default some 700.
GC_THRESHOLD = 10_000


def keep_memory(num_heaps: int = 1) -> bool:
    """Has this process keep what it allocates, and says whether it could.

    Threads that call compiled functions, or load them, at once wait for each other at a heap that
    they share. A heap that is not the first holds 64 MiB at most, in glibc.

    Nothing happens without glibc, or where the environment chooses for itself. Call it before the
    first large allocation: heaps that threads have by then stay.
    """
    if any(name.startswith(PREFIXES) for name in os.environ):
        return False
    library = _glibc()
    if library is None:
        return False
    options = {MAX_HEAPS: num_heaps, **OPTIONS}
    results = [library.mallopt(name, value) for name, value in options.items()]
    return all(result == 1 for result in results)


def give_back() -> bool:
    """Gives the system what is free now, and says whether there was anything to give.

    A compiler leaves more behind than any call will ever need.
    """
    library = _glibc()
    return library is not None and library.malloc_trim(0) == 1


class Hoard:
    """Has memory given back once the process holds twice what it usually does.

    That is what it holds at first, or more where it soon needs more again than that.

    Where one heap serves several threads, what the C library takes for a large aligned array is a
    little more than what it keeps of it. With something small behind it, the place of one array is
    therefore too small for the next of the same size, and a process that keeps what it has freed
    grows by such places from call to call.
    """

    def __init__(self) -> None:
        self._usual = 0
        self._is_fresh = True

    def check(self) -> bool:
        """Says whether memory was given back; the first call, and the next one, see the usual."""
        held = _resident_pages()
        if self._is_fresh:
            self._usual = max(self._usual, held)
        self._is_fresh = held > HOARD * self._usual and give_back()
        return self._is_fresh


def _resident_pages() -> int:
    """How many pages of memory this process holds; 0 where that is not told."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def settle(*, anew: bool = True) -> bool:
    """Takes what is there now for what will stay, and gives back what is free, as ``give_back``.

    Python looks through every object that might be garbage in cycles, again and again, and those of
    JAX and its models take it a tenth of a second each time. It never looks again at what is there
    now, until this is called ``anew``; otherwise what was put aside before, as imports are, stays
    so. At what comes later it looks less often than by default, as little of it is garbage in
    cycles.
    """
    if anew:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    return give_back()


def _glibc() -> Any | None:
    """The C library of this process, if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018
    except (OSError, AttributeError, TypeError):
        return None
    return library

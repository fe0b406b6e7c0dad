"""How the C library keeps memory for the temporaries of compiled functions on a CPU.

Large arrays that live for one call are mapped from the system and given back on every call, which
can take longer than computing with them; and every thread of XLA that ever allocates keeps a heap
of its own. One heap that is kept costs neither.
"""

import ctypes
import os
from typing import Any

# Parameters of mallopt(3) in glibc, with what they are set to.
OPTIONS = {
    -8: 1,  # M_ARENA_MAX: one heap.
    -4: 0,  # M_MMAP_MAX: nothing is mapped by itself.
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD, in bytes: nothing is given back.
    -2: 2**26,  # M_TOP_PAD, in bytes: how much is taken from the system at a time.
}
# Whoever sets one of these has thought about it.
PREFIXES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_memory() -> bool:
    """Has this process keep what it allocates, and says whether it could.

    Nothing happens without glibc, or where the environment chooses for itself. Call it before the
    first large allocation: heaps that threads have by then stay.
    """
    if any(name.startswith(PREFIXES) for name in os.environ):
        return False
    library = _glibc()
    if library is None:
        return False
    results = [library.mallopt(name, value) for name, value in OPTIONS.items()]
    return all(result == 1 for result in results)


def give_back() -> bool:
    """Gives the system what is free now, and says whether there was anything to give.

    A compiler leaves more behind than any call will ever need.
    """
    library = _glibc()
    return library is not None and library.malloc_trim(0) == 1


def _glibc() -> Any | None:
    """The C library of this process, if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018
    except (OSError, AttributeError, TypeError):
        return None
    return library

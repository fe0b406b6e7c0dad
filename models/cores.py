"""Calls of compiled functions on a CPU, side by side: one for every core, in a thread of its own.

The functions are too small to share out well: XLA's threads spend their time waiting for each
other. One call that runs from beginning to end in the thread that makes it has a core to itself.
"""

import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

POOL_SIZE = "PJRT_NPROC"
QUOTA = Path("/sys/fs/cgroup/cpu.max")
# The same in two files, in systems that have the first version of groups.
OLD_QUOTA = Path("/sys/fs/cgroup/cpu")
# A quarter of the time of a core that another thread wants as well.
NICENESS = 5
# By default XLA hands operations that are ready together to its pool, where the rest of a call then
# stays, and all calls wait for the one thread of the pool.
IN_ORDER: dict[str, Any] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def num_cores() -> int:
    """The CPU cores that this process may use, by its affinity and by the quota of its group."""
    affine = getattr(os, "sched_getaffinity", None)
    cores = len(affine(0)) if affine else os.cpu_count() or 1
    return max(1, min(cores, math.ceil(_quota() or cores)))


def _quota() -> float | None:
    """How many cores' time the group of this process may take; None where nobody has set that."""
    # No such file, or "max", or -1: there is no quota.
    with contextlib.suppress(OSError, ValueError):
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = (int((OLD_QUOTA / name).read_text(encoding="ascii")) for name in names)
        return quota / period if quota > 0 else None
    return None


def compiler_options(device: Any) -> dict[str, Any]:
    """What a function is compiled with that is to be called side by side with others."""
    return IN_ORDER if device.platform == "cpu" else {}


def run_calls_side_by_side(pool_size: int = 1) -> bool:
    """Has every call on the CPU run in the thread that makes it, and says whether it could.

    What a call hands to XLA's pool all the same, ``pool_size`` threads of the pool share.
    Call it before JAX has started any device. Whoever has set ``PJRT_NPROC``, the size of the pool
    of threads of XLA, has thought about it.
    """
    if POOL_SIZE in os.environ:
        return False
    os.environ[POOL_SIZE] = str(pool_size)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # noqa: FBT003
    return True


def give_way() -> bool:
    """Has the thread that calls this let others go first, and says whether the system can do so.

    A thread that waits for requests needs little time, but at once: while it holds Python's lock
    and waits for a core that a thread is computing on, all that need the lock wait with it.
    """
    if sys.platform != "linux":
        return False
    try:
        # Linux takes the id of a thread for that of a process.
        thread = threading.get_native_id()
        niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
    except OSError:
        return False
    return True


class Cores:
    """Runs calls in whatever threads they come in, ``num_threads`` at most, on cores of their own.

    The kernel wakes a thread where it sees fit, at times on the core of another that is about to
    run, and a call of some milliseconds is over before one of the two would be moved. A thread that
    was not alone the last time therefore holds a core. One that was may run anywhere: what else the
    machine has to do may be on that core.

    A core that a thread has come to is that thread's for good, and a call must not make another.

    Nothing is held unless there is a thread for every core that the process may use: fewer cores
    than that would be taken from others at random, and a quota is not tied to any core.
    """

    def __init__(self, num_threads: int) -> None:
        affinity = getattr(os, "sched_getaffinity", None)
        cores = sorted(affinity(0)) if affinity else []
        self._all = cores if num_threads == len(cores) == num_cores() else []
        self._free = list(self._all)
        self._own = threading.local()
        self._turn = threading.Lock()
        self._running: set[int] = set()
        self._accompanied: set[int] = set()

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What ``call`` gives for these arguments."""
        core = self._core()
        if core is None:
            return call(*arguments)
        with self._turn:
            self._running.add(core)
            if len(self._running) > 1:
                self._accompanied |= self._running
        try:
            return call(*arguments)
        finally:
            with self._turn:
                self._running.remove(core)
                holds = core in self._accompanied
                self._accompanied.discard(core)
            self._hold(core, holds=holds)

    def _core(self) -> int | None:
        """The core that this thread is to hold, if it is to hold one."""
        if not hasattr(self._own, "core"):
            with self._turn:
                self._own.core = self._free.pop(0) if self._free else None
            self._own.holds = False
        return self._own.core

    def _hold(self, core: int, *, holds: bool) -> None:
        if holds == self._own.holds:
            return
        # A container may forbid it, and cores may be taken away.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core} if holds else self._all)
        self._own.holds = holds

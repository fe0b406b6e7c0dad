"""Keeps calls that run side by side on cores of their own.

The kernel wakes a thread where it sees fit, at times on the core of another that is about to run,
and a call of some milliseconds is over before one of the two would be moved. A thread that was not
alone the last time therefore holds a core. One that was may run anywhere: what else the machine has
to do may be on that core.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from service.device import num_cores


class Cores:
    """Runs calls in whatever threads they come in, of which there are ``num_threads``.

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

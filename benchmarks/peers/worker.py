"""The end of a conversation that runs inside a peer: calls come in as lines of JSON, and go out so.

Only the standard library is imported here, since every peer's environment runs it. A module that
is started as ``python -m`` gives its class to ``answer_calls``; whatever it or its libraries print
goes to standard error.
"""

import contextlib
import ctypes
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


def answer_calls(make: Callable[..., Any]) -> None:
    """Runs the calls that come on standard input, one a line, until it ends.

    A line is ``{"call": NAME, "arguments": {...}}``, its answer ``{"result": ...}`` or
    ``{"error": TEXT}``. The first call, ``set_up``, is to ``make``, and those that follow are to
    the methods of what it gave.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    made: list[Any] = []

    def run(call: str, arguments: dict[str, Any]) -> Any:
        if call == "set_up":
            made[:] = [make(**arguments)]
            return None
        return getattr(made[0], call)(**arguments)

    # Whoever asked may have been stopped before the answer.
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            answers.write(json.dumps(_answer(run, json.loads(line))) + "\n")
            answers.flush()


def _answer(run: Callable[..., Any], asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": run(**asked)}
    except Exception:  # noqa: BLE001 - the other end raises it
        return {"error": traceback.format_exc()}


def time_calls(function: Callable[[], Any], num_calls: int, num_warm: int = 1) -> list[float]:
    """Milliseconds of each of ``num_calls`` calls, after ``num_warm`` that are not counted."""
    for _ in range(num_warm):
        function()
    taken = []
    for _ in range(num_calls):
        before = time.perf_counter()
        function()
        taken.append((time.perf_counter() - before) * 1e3)
    return taken


def num_cores() -> int:
    """How many cores this process may use, which is how many threads a contestant gets."""
    return len(os.sched_getaffinity(0))


def memory_of(function: Callable[[], Any]) -> float:
    """By how much the memory of this process grows while a function runs, at most, in MiB."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        # What earlier calls have left in the heap would otherwise be used first, and not be seen.
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as control:
        control.write("5")
    before = _status_mib("VmRSS")
    function()
    return _status_mib("VmHWM") - before


def _status_mib(name: str) -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith(name))
    return int(line.split()[1]) / 1024

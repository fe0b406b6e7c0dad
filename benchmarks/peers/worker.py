"""The end of a conversation that runs inside a peer: calls come in as lines of JSON, and go out so.

Only the standard library is imported here, since every peer's environment runs it. A module that
is started as ``python -m`` gives its functions to ``answer_calls``; whatever it or its libraries
print goes to standard error.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def answer_calls(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Runs the functions that are named on standard input, one a line, until it ends.

    A line is ``{"call": NAME, "arguments": {...}}``, its answer ``{"result": ...}`` or
    ``{"error": TEXT}``, with the seconds that it took.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_answer(functions, json.loads(line))) + "\n")
        answers.flush()


def _answer(functions: Mapping[str, Callable[..., Any]], asked: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        told = {"result": functions[asked["call"]](**asked["arguments"])}
    except Exception:  # noqa: BLE001 - the other end raises it
        told = {"error": traceback.format_exc()}
    return {**told, "seconds": time.perf_counter() - began}


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


def peak_mib() -> float:
    """The most memory that this process has held at once since ``forget_peak``, in MiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


def forget_peak() -> None:
    """Has ``peak_mib`` start from what is held now."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as control:
        control.write("5")

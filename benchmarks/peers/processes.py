"""Contestants: processes that compute when they are called, one at a time.

Each is a module that gives its class to ``worker.answer_calls``, run by the interpreter of its
own environment. While one computes the others wait for a line on their standard input, so calls of
several can be interleaved without disturbing each other. Times are taken inside.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import environments

ROOT = Path(__file__).parent.parent.parent
# Threads that spin after their work, waiting for more, have gone to sleep by then.
PAUSE_S = 0.02


class CallError(RuntimeError):
    """A contestant could not do what it was called for; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """How to start a process: a module, the peer whose environment runs it, what it has there.

    Without a peer it is ours, in this environment. ``setting`` is what its class is made with.
    """

    name: str
    module: str
    peer: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)


class Process:
    """A contestant that is running."""

    def __init__(self, contestant: Contestant) -> None:
        self.name = contestant.name
        peer = contestant.peer
        python = environments.python_of(peer) if peer else Path(sys.executable)
        self._process = subprocess.Popen(
            [python, "-m", contestant.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), **contestant.environment},
            cwd=ROOT,
            text=True,
            encoding="utf-8",
        )

    def call(self, name: str, **arguments: Any) -> Any:
        """What a method of the contestant gives.

        Raises:
            CallError: if it raised, or if the process has ended.
        """
        assert self._process.stdin
        assert self._process.stdout
        try:
            line = json.dumps({"call": name, "arguments": arguments})
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            status = self._process.wait()
            raise CallError(f"{self.name}: {name}: the process ended with status {status}")
        told = json.loads(answer)
        if "error" in told:
            raise CallError(f"{self.name}: {name}: {told['error']}")
        return told["result"]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.close()
            self._process.wait(timeout=30)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def running(contestants: Sequence[Contestant]) -> Iterator[dict[str, Process]]:
    """The contestants by name, started and set up one after another."""
    with ExitStack() as stack:
        processes = {}
        for contestant in contestants:
            processes[contestant.name] = process = Process(contestant)
            stack.callback(process.close)
            began = time.monotonic()
            process.call("set_up", **contestant.setting)
            _tell(f"{contestant.name} is set up in {time.monotonic() - began:.1f} s")
        yield processes


def take_turns(
    turns: Mapping[str, Callable[[], list[float]]], num_rounds: int, pause_s: float = PAUSE_S
) -> dict[str, list[list[float]]]:
    """What each gives in every round.

    In a round all have one turn, one after another; who begins changes from round to round.
    """
    names = list(turns)
    taken: dict[str, list[list[float]]] = {name: [] for name in names}
    began = time.monotonic()
    for index in range(num_rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(pause_s)
            taken[name].append(turns[name]())
    _tell(f"{num_rounds} rounds of {', '.join(names)} in {time.monotonic() - began:.1f} s")
    return taken


def _tell(line: str) -> None:
    sys.stderr.write(f"benchmarks: {line}\n")
    sys.stderr.flush()

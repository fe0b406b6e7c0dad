"""A run in several processes of this machine, which trains faster on a CPU than one with threads.

The threads of one process share products that are too small to share well. Processes of one thread
compute rows of their own and meet once a step, to add up their gradients
(docs/decisions/0027-training-on-a-cpu.md).
"""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from training.devices import DevicesError, join_processes

# The others have nothing left to do once this process lets them go.
EXIT_TIMEOUT_S = 60

logger = logging.getLogger(__name__)


@contextmanager
def side_by_side(
    arguments: Sequence[str], count: int, alike: tuple[type[Exception], ...]
) -> Iterator[None]:
    """Makes this process the first of ``count`` that all run the command of ``arguments``.

    To be entered before anything is computed: from then on a process has one thread to compute
    with. ``alike`` is what all of them raise together, as when they are asked to stop; after any
    other exception here the others are ended.

    Raises:
        DevicesError: if another process failed where this one did not.
    """
    os.environ["NPROC"] = "1"
    coordinator = f"127.0.0.1:{free_port()}"
    others = [_start(arguments, coordinator, count, index) for index in range(1, count)]
    try:
        join_processes(coordinator, count, 0)
        yield
    except alike:
        _leave(others)
        raise
    except BaseException:
        for other in others:
            other.kill()
            other.wait()
        raise
    failed = [status for status in _leave(others) if status]
    if failed:
        raise DevicesError(f"expected every process to end with status 0, got {failed}")


def command_of(
    arguments: Sequence[str], coordinator: str, count: int, index: int
) -> tuple[str, ...]:
    """What process ``index`` of ``count`` runs; of an option given twice the later one counts."""
    several = ["--coordinator", coordinator, "--num-processes", count, "--process-id", index]
    options = [*arguments, "--cpu-processes", 1, *several]
    return (sys.executable, "-m", "training", *map(str, options))


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start(arguments: Sequence[str], *several: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command_of(arguments, *several), stdin=subprocess.DEVNULL)


def _leave(others: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Leaves together with the others, which wait for that; gives their exit statuses."""
    jax.distributed.shutdown()
    statuses = []
    for other in others:
        try:
            statuses.append(other.wait(EXIT_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            logger.warning(
                "process %d did not end by itself within %d s", other.pid, EXIT_TIMEOUT_S
            )
            other.kill()
            statuses.append(other.wait())
    return statuses

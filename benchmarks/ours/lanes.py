"""Rows through an engine as the service's batcher sends them, without its queue."""

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from models import allocator
from models.cores import Cores, num_cores, run_calls_side_by_side
from service import device
from service.engine import Engine, Outcome
from service.programs import Program, Result, Row
from service.steps import as_it_is


def set_up() -> None:
    """What the service sees to before JAX starts, for models on the CPU."""
    allocator.keep_memory(1 + num_cores())
    run_calls_side_by_side()
    device.reserve("cpu")


def at_lengths(program: Program, lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The shapes of a program's grid that inputs of these lengths run in."""
    buckets = {program.bucket(length) for length in lengths}
    return tuple(shape for shape in program.grid if shape[1] in buckets)


class Lanes:
    """As many calls of one engine side by side as the service makes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.num_threads = device.num_calls(jax.devices()[0], 0)
        self._pool = ThreadPoolExecutor(self.num_threads)
        self._cores = Cores(self.num_threads)

    def run(self, name: str, rows: Sequence[Row]) -> list[Outcome]:
        """What ``Engine.run`` gives, for any number of rows of one compiled length."""
        program = self.engine.programs[name]
        bucket = program.bucket(max(len(row[program.ragged.name]) for row in rows))
        outcomes: list[Any] = [None] * len(rows)
        taken, num_free, turn = 0, self.num_threads, threading.Lock()

        def take() -> slice:
            """The next rows that had best run together; those who are free get their share."""
            nonlocal taken, num_free
            with turn:
                left = len(rows) - taken
                count = left and self.engine.fit(name, bucket, math.ceil(left / num_free))
                taken += count
                num_free -= 1
                return slice(taken - count, taken)

        def work() -> None:
            nonlocal num_free
            while (part := take()).start < part.stop:
                outcomes[part] = self._cores.run(self.engine.run, name, rows[part])
                with turn:
                    num_free += 1

        for under_way in [self._pool.submit(work) for _ in range(min(self.num_threads, len(rows)))]:
            under_way.result()
        return outcomes

    def run_one(self, name: str, row: Row) -> Result:
        """The result of a row that has all threads, which share it if it is long enough."""
        share = self.engine.programs[name].share
        steps = share(row, self.num_threads) if share else as_it_is(name, row)
        asked = next(steps)
        while True:
            # All of a step that stands for one row are of one program and of one compiled length.
            outcomes = self.run(asked[0][0], [part for _, part in asked])
            try:
                asked = steps.send([succeeded(outcome) for outcome in outcomes])
            except StopIteration as end:
                return end.value


def succeeded(outcome: Outcome) -> Result:
    """The result that an outcome is.

    Raises:
        NonFiniteOutput: if it is none.
    """
    if isinstance(outcome, Exception):
        raise outcome
    return outcome

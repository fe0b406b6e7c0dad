"""Threads that work for an event loop; asyncio, no JAX, no HTTP.

An executor does the same by a future of its own behind that of the loop, with locks for threads
that wait for it, which nobody does here: that costs as much as reading a request.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple


class _Order(NamedTuple):
    """What is to be done, and what the loop is to do then."""

    loop: asyncio.AbstractEventLoop
    work: Callable[[], object]
    then: Callable[[], object]


class WorkerThreads:
    """So many threads, which start with the first work.

    Each runs ``prepare`` first, which raises nothing.
    """

    def __init__(self, count: int, prepare: Callable[[], object] = lambda: None) -> None:
        self._count = count
        self._prepare = prepare
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], object], then: Callable[[], object]) -> None:
        """Has a thread do ``work``, which raises nothing, and the loop of this thread ``then``.

        Threads that are free take what was asked for first.
        """
        if len(self._threads) < self._count:
            self._start()
        self._orders.put(_Order(asyncio.get_running_loop(), work, then))

    def stop(self) -> None:
        """Ends the threads once they have done all that was asked for, and waits for it."""
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self) -> None:
        for index in range(len(self._threads), self._count):
            thread = threading.Thread(target=self._serve, name=f"engine_{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self) -> None:
        self._prepare()
        while order := self._orders.get():
            order.work()
            # The loop is closed where nobody waits any more.
            with contextlib.suppress(RuntimeError):
                order.loop.call_soon_threadsafe(order.then)
            # What it held must not live until the next one comes.
            del order

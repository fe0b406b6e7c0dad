"""Threads that work for an event loop; asyncio, no JAX, no HTTP.

An executor does the same by a future of its own behind that of the loop, with locks for threads
that wait for it, which nobody does here: that costs as much as reading a request.
"""

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class _Order(NamedTuple):
    """What is to be done, and what the loop is to do then."""

    loop: asyncio.AbstractEventLoop
    work: Callable[[], object]
    then: Callable[[], object]


_Mailbox = queue.SimpleQueue[_Order | None]


class WorkerThreads:
    """So many threads, which start with the first work.

    Each runs ``prepare`` first, which raises nothing. Of threads that are free, the one that was
    the last to work goes first: its core has more of what a call needs in its cache, and its heap
    too.
    """

    def __init__(self, count: int, prepare: Callable[[], object] = lambda: None) -> None:
        self._count = count
        self._prepare = prepare
        self._orders: deque[_Order] = deque()
        # Where free threads listen, in the order in which they became free.
        self._free: list[_Mailbox] = []
        self._lock = threading.Lock()
        self._is_ending = False
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], object], then: Callable[[], object]) -> None:
        """Has a thread do ``work``, which raises nothing, and the loop of this thread ``then``.

        What was asked for first is begun first.
        """
        if len(self._threads) < self._count:
            self._start()
        order = _Order(asyncio.get_running_loop(), work, then)
        with self._lock:
            mailbox = self._free.pop() if self._free else None
            if mailbox is None:
                self._orders.append(order)
        if mailbox:
            mailbox.put(order)

    def stop(self) -> None:
        """Ends the threads once they have done all that was asked for, and waits for it."""
        with self._lock:
            self._is_ending = True
            free, self._free = self._free, []
        for mailbox in free:
            mailbox.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._is_ending = False

    def _start(self) -> None:
        for index in range(len(self._threads), self._count):
            thread = threading.Thread(target=self._serve, name=f"engine_{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self) -> None:
        self._prepare()
        mailbox = _Mailbox()
        while order := self._next(mailbox):
            order.work()
            # The loop is closed where nobody waits any more.
            with contextlib.suppress(RuntimeError):
                order.loop.call_soon_threadsafe(order.then)
            # What it held must not live until the next one comes.
            del order

    def _next(self, mailbox: _Mailbox) -> _Order | None:
        """What a thread is to do, once there is something; None once it is to end."""
        with self._lock:
            if self._orders:
                return self._orders.popleft()
            if self._is_ending:
                return None
            self._free.append(mailbox)
        return mailbox.get()

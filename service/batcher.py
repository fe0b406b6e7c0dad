"""Rows of many requests, gathered into batches; asyncio, no JAX, no HTTP.

A worker takes what is queued the moment it is free and never waits for more; where several are
free, they share it. What may share a batch has the same key; rows of the oldest request go first. A
batch that nothing more would fit into lies ready for the worker that is free next, so that none
waits for the loop meanwhile. A request fails or succeeds whole and gets exactly its own rows. A
batch that fails takes its own requests with it and no others; a row whose result is an exception
takes only the request that it belongs to. Should what hands out batches die, what is queued and
under way fails, and it is started again.
"""

import asyncio
import contextvars
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from service.batches import Batch, Call, Entry, Part, Run, Ticket, Work
from service.errors import NotReady, Overloaded, TooLarge
from service.worker_threads import WorkerThreads

logger = logging.getLogger(__name__)

Fit = Callable[[Any, int], int]
# How long workers stay down after one has died: long enough for probes to see it.
RESTART_DELAY_S = 1.0


class Batcher:
    """A bounded queue in front of ``num_workers`` threads.

    ``run(key, rows)`` gives one result per row, or an exception in its place. ``fit(key, count)``
    says how many of so many rows it had best be given at once. At most ``max_rows`` rows wait at
    any time, whatever requests they belong to. ``observe`` is told of every batch that has run, and
    ``prepare`` is what every thread does first.
    """

    def __init__(
        self,
        run: Run,
        fit: Fit,
        *,
        max_rows: int,
        num_workers: int = 1,
        observe: Callable[[Batch], None] = lambda batch: None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._run = run
        self._observe = observe
        self._fit = fit
        self._max_rows = max_rows
        self._num_workers = num_workers
        self._num_rows = 0
        self._entries: deque[Entry] = deque()
        self._threads = WorkerThreads(num_workers, prepare)
        # What is being computed, and what the threads take next.
        self._begun: list[Work] = []
        self._ready: deque[Work] = deque()
        self._is_handing_out = False
        # What is logged of all requests is none's own.
        self._context = contextvars.Context()
        self._restart: asyncio.TimerHandle | None = None
        self.is_alive = False
        self.num_restarts = 0

    async def start(self) -> None:
        """Starts to take rows."""
        self.is_alive = True

    async def stop(self) -> None:
        """Stops the workers; what is queued or under way fails with ``NotReady``."""
        if self._restart:
            self._restart.cancel()
        self._fail_all()
        await asyncio.to_thread(self._threads.stop)

    @property
    def num_rows(self) -> int:
        """How many rows wait."""
        return self._num_rows

    @property
    def num_idle(self) -> int:
        """How many workers have nothing to do, nor will with what waits, and can be given a row."""
        num_idle = self._num_workers - len(self._begun) - self._num_rows
        return max(min(num_idle, self._max_rows - self._num_rows), 0)

    @property
    def busy_s(self) -> float:
        """How long the oldest batch that is under way has been running; 0 where there is none."""
        started = min((work.started for work in self._begun), default=None)
        return 0.0 if started is None else time.monotonic() - started

    async def submit(self, groups: Sequence[tuple[Hashable, Any]], ticket: Ticket) -> list[Any]:
        """The results of (key, row) pairs, in order.

        Raises:
            Overloaded: if the queue has no room for the rows now.
            TooLarge: if it never has.
            DeadlineExceeded: if the ticket runs out first.
            NotReady: if the workers are down.
        """
        self._require_room(len(groups))
        if not groups:
            return []
        by_key: dict[Hashable, list[int]] = {}
        for index, (key, _) in enumerate(groups):
            by_key.setdefault(key, []).append(index)
        for key, places in by_key.items():
            # What is wrong with a key is its own request's to hear.
            self._fit(key, len(places))
        loop, now = asyncio.get_running_loop(), time.monotonic()
        call = Call(ticket, loop.create_future(), [None] * len(groups), len(groups))
        for key, places in by_key.items():
            rows = [groups[place][1] for place in places]
            self._entries.append(Entry(key, rows, places, call, since=now))
        self._num_rows += len(groups)
        # Once all that has come is queued, so that it shares batches.
        if not self._is_handing_out:
            self._is_handing_out = True
            loop.call_soon(self._hand_out, context=self._context)
        return await _outcome(call, loop)

    def _require_room(self, num_rows: int) -> None:
        if not self.is_alive:
            raise NotReady("expected a running worker, got none")
        if num_rows > self._max_rows:
            raise TooLarge(f"expected at most {self._max_rows} rows a request, got {num_rows}")
        if self._num_rows + num_rows > self._max_rows:
            self._drop_abandoned()
        if self._num_rows + num_rows > self._max_rows:
            raise Overloaded(f"the queue is full: {self._num_rows} of {self._max_rows} rows wait")

    def _hand_out(self) -> None:
        """Gives the threads what there is for them; whatever goes wrong ends all that waits."""
        self._is_handing_out = False
        # It must not leave requests without workers for ever.
        try:
            # A thread has begun what lay ready.
            while self._ready and len(self._begun) < self._num_workers:
                self._begun.append(self._ready.popleft())
            while self.is_alive and (work := self._take()):
                self._begin(work)
        except Exception:
            self.num_restarts += 1
            logger.critical(
                "the worker has died; the next one starts in %g s", RESTART_DELAY_S, exc_info=True
            )
            self._fail_all()
            loop = asyncio.get_running_loop()
            self._restart = loop.call_later(RESTART_DELAY_S, self._revive)

    def _revive(self) -> None:
        self.is_alive = True

    def _fail_all(self) -> None:
        """Takes nothing any more, and fails what waits or is under way."""
        self.is_alive = False
        error = NotReady("the worker has stopped")
        for work in (*self._begun, *self._ready):
            work.fail(error)
        for entry in self._entries:
            entry.call.fail(error)
        self._begun.clear()
        self._ready.clear()
        self._entries.clear()
        self._num_rows = 0

    def _take(self) -> Work | None:
        """The next batch, of one key, for a worker that is free or will be.

        What other workers are free to take is left to them, and where none is free, what is not a
        full batch is left to what may still come.
        """
        if len(self._begun) + len(self._ready) == 2 * self._num_workers:
            return None
        self._drop_abandoned()
        if not self._entries:
            return None
        num_free = self._num_workers - len(self._begun)
        key = self._entries[0].key
        fitting = [entry for entry in self._entries if entry.key == key]
        num_waiting = sum(entry.num_left for entry in fitting)
        room = self._fit(key, math.ceil(num_waiting / max(num_free, 1)))
        if num_free == 0 and room < self._fit(key, self._max_rows):
            return None
        parts = []
        for entry in fitting:
            if count := min(room, entry.num_left):
                parts.append(Part(entry, entry.num_taken, entry.num_taken + count))
                entry.num_taken += count
                room -= count
        self._entries = deque(entry for entry in self._entries if entry.num_left)
        return Work(key, parts, time.monotonic())

    def _drop_abandoned(self) -> None:
        """Forgets what nobody waits for any more: cancelled, failed or past its deadline."""
        now = time.monotonic()
        self._entries = deque(entry for entry in self._entries if entry.call.is_wanted(now))
        queued = sum(entry.num_left for entry in self._entries)
        self._num_rows = queued + sum(work.num_waiting for work in self._ready)

    def _begin(self, work: Work) -> None:
        """Gives a batch to the threads; it begins now, or when one of them is free."""
        if len(self._begun) < self._num_workers:
            self._num_rows -= sum(part.num_rows for part in work.parts)
            self._begun.append(work)
        else:
            self._ready.append(work)
        self._threads.run(functools.partial(work.do, self._run), functools.partial(self._end, work))

    def _end(self, work: Work) -> None:
        """Hands out what came of a batch, and begins what waited for it to end."""
        # Not so where all has failed meanwhile.
        if work in self._begun:
            self._begun.remove(work)
        if work.error:
            logger.warning(
                "a batch of %d rows for %s failed: %r", len(work.rows), work.key, work.error
            )
            work.fail(work.error)
        # Before any request goes on: a thread may wait for it.
        self._hand_out()
        waited_s = [max(work.started - entry.since, 0.0) for entry, *_ in work.parts]
        for entry, *_ in work.parts:
            ticket = entry.call.ticket
            ticket.batches.append((min(entry.since, work.started), work.started, work.ended))
            ticket.compute_s += work.ended - work.started
            entry.since = work.ended
        if work.error is None:
            work.deliver()
        # Behind those whose rows these are.
        asyncio.get_running_loop().call_soon(self._tell, work, waited_s)

    def _tell(self, work: Work, waited_s: Sequence[float]) -> None:
        if not work.rows:
            return
        try:
            self._observe(
                Batch(
                    key=work.key,
                    rows=work.rows,
                    waited_s=waited_s,
                    compute_s=work.ended - work.started,
                    results=None if work.error else work.results,
                )
            )
        except Exception:
            logger.exception("a batch could not be counted")


async def _outcome(call: Call, loop: asyncio.AbstractEventLoop) -> list[Any]:
    """The results of a call; when a row fails or the ticket runs out, none is waited for."""
    ticket = call.ticket
    started, computed_s = time.monotonic(), ticket.compute_s
    # A loop counts by the monotonic clock, too.
    expiry = loop.call_at(ticket.deadline, call.expire)
    try:
        return await call.future
    finally:
        expiry.cancel()
        call.future.cancel()
        spent_s = time.monotonic() - started
        ticket.queue_s += max(spent_s - (ticket.compute_s - computed_s), 0.0)

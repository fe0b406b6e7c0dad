"""Rows of many requests, gathered into batches; asyncio, no JAX, no HTTP.

A worker takes what is queued the moment it is free and never waits for more; where several are
free, they share it. What may share a batch has the same key; rows of the oldest request go first. A
request fails or succeeds whole and gets exactly its own rows. A batch that fails takes its own
requests with it and no others; a row whose result is an exception takes only the request that it
belongs to. Should a worker itself die, what is queued fails, and others are started.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.errors import DeadlineExceeded, NotReady, Overloaded, TooLarge

logger = logging.getLogger(__name__)

Run = Callable[[Any, Sequence[Any]], Sequence[Any]]
Fit = Callable[[Any, int], int]
# How long workers stay down after one has died: long enough for probes to see it.
RESTART_DELAY_S = 1.0


@dataclass(slots=True)
class Ticket:
    """One request's allowance and its account: monotonic ``deadline``, and seconds spent so far.

    Rows of the request are computed for ``compute_s``, what ran side by side counted each, and wait
    for it, or between it, ``queue_s``.
    ``batches`` are the moments when rows began to wait, to be computed, and were done; ``task`` is
    what they were computed for, and ``usage`` what they have been charged with so far, for tasks
    whose answers do not tell it. A rehearsal is a request that no client has sent.
    """

    deadline: float
    queue_s: float = 0.0
    compute_s: float = 0.0
    batches: list[tuple[float, float, float]] = field(default_factory=list)
    task: str = ""
    usage: Any = None
    is_rehearsal: bool = False

    @classmethod
    def within(cls, seconds: float) -> "Ticket":
        """A ticket that runs out ``seconds`` from now."""
        return cls(time.monotonic() + seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What a batch held, how long the rows of each request had waited, and what came of it.

    ``results`` is None where the whole batch has failed.
    """

    key: Any
    rows: Sequence[Any]
    waited_s: Sequence[float]
    compute_s: float
    results: Sequence[Any] | None


@dataclass(slots=True)
class _Entry:
    """Rows of one call that share a key, with what has come back; they wait ``since`` then.

    Batches can end in another order than they began, so every row has its place in ``results``.
    """

    key: Hashable
    rows: Sequence[Any]
    ticket: Ticket
    future: asyncio.Future[list[Any]]
    since: float
    results: list[Any] = field(default_factory=list)
    num_taken: int = 0
    num_done: int = 0

    def __post_init__(self) -> None:
        self.results = [None] * len(self.rows)

    @property
    def num_left(self) -> int:
        """How many of its rows wait."""
        return len(self.rows) - self.num_taken


class _Part(NamedTuple):
    """The rows of an entry from ``first`` to before ``end``."""

    entry: _Entry
    first: int
    end: int


class Batcher:
    """A bounded queue in front of ``num_workers`` threads.

    ``run(key, rows)`` gives one result per row, or an exception in its place. ``fit(key, count)``
    says how many of so many rows it had best be given at once. At most ``max_rows`` rows wait at
    any time, whatever requests they belong to. ``observe`` is told of every batch that has run.
    """

    def __init__(
        self,
        run: Run,
        fit: Fit,
        *,
        max_rows: int,
        num_workers: int = 1,
        observe: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        self._run = run
        self._observe = observe
        self._fit = fit
        self._max_rows = max_rows
        self._num_workers = num_workers
        self._num_rows = 0
        self._entries: deque[_Entry] = deque()
        self._filled = asyncio.Event()
        self._executor = ThreadPoolExecutor(num_workers, thread_name_prefix="engine")
        self._supervisor: asyncio.Task[None] | None = None
        # When every batch that is under way was begun.
        self._begun: list[float] = []
        self.is_alive = False
        self.num_restarts = 0

    async def start(self) -> None:
        """Starts the workers."""
        self.is_alive = True
        self._supervisor = asyncio.create_task(self._supervise(), name="batcher")

    async def stop(self) -> None:
        """Stops the workers; what is queued or under way fails with ``NotReady``."""
        if self._supervisor:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        # It may have been cancelled before it ran at all.
        self.is_alive = False
        await asyncio.to_thread(self._executor.shutdown)

    @property
    def num_rows(self) -> int:
        """How many rows wait."""
        return self._num_rows

    @property
    def busy_s(self) -> float:
        """How long the oldest batch that is under way has been running; 0 where there is none."""
        return time.monotonic() - min(self._begun) if self._begun else 0.0

    async def submit(self, groups: Sequence[tuple[Hashable, Any]], ticket: Ticket) -> list[Any]:
        """The results of (key, row) pairs, in order.

        Raises:
            Overloaded: if the queue has no room for the rows now.
            TooLarge: if it never has.
            DeadlineExceeded: if the ticket runs out first.
            NotReady: if the workers are down.
        """
        self._require_room(len(groups))
        by_key: dict[Hashable, list[int]] = {}
        for index, (key, _) in enumerate(groups):
            by_key.setdefault(key, []).append(index)
        for key, indices in by_key.items():
            # What is wrong with a key is its own request's to hear.
            self._fit(key, len(indices))
        entries = [
            self._enqueue(key, [groups[i][1] for i in indices], ticket)
            for key, indices in by_key.items()
        ]
        results: list[Any] = [None] * len(groups)
        for indices, part in zip(by_key.values(), await _collect(entries, ticket), strict=True):
            for index, result in zip(indices, part, strict=True):
                results[index] = result
        return results

    def _require_room(self, num_rows: int) -> None:
        if not self.is_alive:
            raise NotReady("expected a running worker, got none")
        if num_rows > self._max_rows:
            raise TooLarge(f"expected at most {self._max_rows} rows a request, got {num_rows}")
        if self._num_rows + num_rows > self._max_rows:
            self._drop_abandoned()
        if self._num_rows + num_rows > self._max_rows:
            raise Overloaded(f"the queue is full: {self._num_rows} of {self._max_rows} rows wait")

    def _enqueue(self, key: Hashable, rows: Sequence[Any], ticket: Ticket) -> _Entry:
        future = asyncio.get_running_loop().create_future()
        entry = _Entry(key, rows, ticket, future, since=time.monotonic())
        self._entries.append(entry)
        self._num_rows += len(rows)
        self._filled.set()
        return entry

    async def _supervise(self) -> None:
        """Has the workers work, and others when one dies."""
        while True:
            try:
                await self._work_together()
            # Whatever it was must not leave requests without workers for ever.
            except Exception:
                self.num_restarts += 1
                logger.critical(
                    "the worker has died; the next one starts in %g s",
                    RESTART_DELAY_S,
                    exc_info=True,
                )
            await asyncio.sleep(RESTART_DELAY_S)
            self.is_alive = True

    async def _work_together(self) -> None:
        """Has every worker work until one dies, which ends all."""
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._num_workers):
                    workers.create_task(self._work())
        finally:
            self.is_alive = False
            for entry in self._entries:
                _fail(entry, NotReady("the worker has stopped"))
            self._entries.clear()
            self._num_rows = 0

    async def _work(self) -> None:
        while True:
            await self._filled.wait()
            if batch := self._take():
                await self._serve(batch)

    def _take(self) -> list[_Part]:
        """The next batch, of one key.

        What other workers are free to take is left to them.
        """
        self._drop_abandoned()
        if not self._entries:
            self._filled.clear()
            return []
        key = self._entries[0].key
        fitting = [entry for entry in self._entries if entry.key == key]
        num_free = self._num_workers - len(self._begun)
        share = math.ceil(sum(entry.num_left for entry in fitting) / num_free)
        room = self._fit(key, share)
        batch = []
        for entry in fitting:
            if count := min(room, entry.num_left):
                batch.append(_Part(entry, entry.num_taken, entry.num_taken + count))
                entry.num_taken += count
                room -= count
                self._num_rows -= count
        self._entries = deque(entry for entry in self._entries if entry.num_left)
        return batch

    def _drop_abandoned(self) -> None:
        """Forgets what nobody waits for any more: cancelled, failed or past its deadline."""
        now = time.monotonic()
        kept = deque(e for e in self._entries if not e.future.done() and e.ticket.deadline > now)
        self._num_rows = sum(entry.num_left for entry in kept)
        self._entries = kept

    async def _serve(self, taken: list[_Part]) -> None:
        key, started = taken[0].entry.key, time.monotonic()
        rows: list[Any] = []
        results: Sequence[Any] | None = None
        self._begun.append(started)
        # Whatever a batch raises belongs to its own requests; the worker goes on.
        try:
            for entry, first, end in taken:
                rows += entry.rows[first:end]
            results = await self._compute(key, rows)
        except asyncio.CancelledError:
            for entry, *_ in taken:
                _fail(entry, NotReady("the worker has stopped"))
            raise
        except Exception as error:  # noqa: BLE001
            logger.warning("a batch of %d rows for %s failed: %r", len(rows), key, error)
            for entry, *_ in taken:
                _fail(entry, error)
        finally:
            self._begun.remove(started)
        ended = time.monotonic()
        waited_s = [max(started - entry.since, 0.0) for entry, *_ in taken]
        for entry, *_ in taken:
            entry.ticket.batches.append((min(entry.since, started), started, ended))
            entry.ticket.compute_s += ended - started
            entry.since = ended
        if results is not None:
            _deliver_all(taken, results)
        compute_s = ended - started
        self._tell(
            Batch(key=key, rows=rows, waited_s=waited_s, compute_s=compute_s, results=results)
        )

    def _tell(self, batch: Batch) -> None:
        try:
            self._observe(batch)
        except Exception:
            logger.exception("a batch could not be counted")

    async def _compute(self, key: Any, rows: Sequence[Any]) -> Sequence[Any]:
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(self._executor, self._run, key, rows)
        if len(results) != len(rows):
            raise RuntimeError(f"expected {len(rows)} results, got {len(results)}")
        return results


async def _collect(entries: Sequence[_Entry], ticket: Ticket) -> list[list[Any]]:
    """The results of all entries; when one fails or the ticket runs out, none is waited for."""
    started, computed_s = time.monotonic(), ticket.compute_s
    try:
        async with asyncio.timeout(_left(ticket)):
            return await asyncio.gather(*(entry.future for entry in entries))
    except TimeoutError:
        raise DeadlineExceeded("the answer was not ready in time") from None
    finally:
        for entry in entries:
            entry.future.cancel()
        spent_s = time.monotonic() - started
        ticket.queue_s += max(spent_s - (ticket.compute_s - computed_s), 0.0)


def _deliver_all(taken: Sequence[_Part], results: Sequence[Any]) -> None:
    """Hands every entry the results of its own rows."""
    start = 0
    for part in taken:
        count = part.end - part.first
        _deliver(part, results[start : start + count])
        start += count


def _deliver(part: _Part, results: Sequence[Any]) -> None:
    """Hands an entry the results of some of its rows; the last, or a fault, ends it."""
    entry = part.entry
    entry.results[part.first : part.end] = results
    entry.num_done += len(results)
    fault = next((result for result in results if isinstance(result, Exception)), None)
    if fault:
        _fail(entry, fault)
    elif entry.num_done == len(entry.rows) and not entry.future.done():
        entry.future.set_result(entry.results)


def _left(ticket: Ticket) -> float:
    return max(ticket.deadline - time.monotonic(), 0.0)


def _fail(entry: _Entry, error: Exception) -> None:
    if not entry.future.done():
        entry.future.set_exception(error)

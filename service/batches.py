"""Rows on their way: as requests submit them, as a batch holds them, and back."""

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.errors import DeadlineExceeded

Run = Callable[[Any, Sequence[Any]], Sequence[Any]]


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


@dataclass(slots=True, eq=False)
class Call:
    """Rows that were submitted together; their ``future`` has all results once the last is there.

    Batches can end in another order than they began, so every row has its place in ``results``.
    """

    ticket: Ticket
    future: asyncio.Future[list[Any]]
    results: list[Any]
    num_left: int

    def deliver(self, places: Sequence[int], results: Sequence[Any]) -> None:
        """Takes the results of some rows; the last, or a fault, ends the call."""
        if self.future.done():
            return
        for place, result in zip(places, results, strict=True):
            if isinstance(result, Exception):
                self.fail(result)
                return
            self.results[place] = result
        self.num_left -= len(places)
        if not self.num_left:
            self.future.set_result(self.results)

    def is_wanted(self, now: float) -> bool:
        """Whether somebody waits for it yet."""
        return not self.future.done() and self.ticket.deadline > now

    def fail(self, error: Exception) -> None:
        """Ends the call with an error, unless it is over."""
        if not self.future.done():
            self.future.set_exception(error)

    def expire(self) -> None:
        """Ends the call because its time is over."""
        self.fail(DeadlineExceeded("the answer was not ready in time"))


@dataclass(slots=True, eq=False)
class Entry:
    """Rows of a call that share a key, with their places in it; they wait ``since`` then."""

    key: Hashable
    rows: Sequence[Any]
    places: Sequence[int]
    call: Call
    since: float
    num_taken: int = 0

    @property
    def num_left(self) -> int:
        """How many of its rows wait."""
        return len(self.rows) - self.num_taken


class Part(NamedTuple):
    """The rows of an entry from ``first`` to before ``end``."""

    entry: Entry
    first: int
    end: int

    @property
    def num_rows(self) -> int:
        """How many rows these are."""
        return self.end - self.first


@dataclass(slots=True, eq=False)
class Work:
    """A batch on its way through a thread, which fills in when it ran, what of it, what came of it.

    What nobody waits for any more when it begins is left out of ``parts`` and ``rows``.
    """

    key: Any
    parts: list[Part]
    started: float
    ended: float = 0.0
    rows: list[Any] = field(default_factory=list)
    results: Sequence[Any] = ()
    error: Exception | None = None

    @property
    def num_waiting(self) -> int:
        """How many of its rows somebody waits for."""
        now = time.monotonic()
        return sum(part.num_rows for part in self.parts if part.entry.call.is_wanted(now))

    def do(self, run: Run) -> None:
        """Computes the batch."""
        self.started = time.monotonic()
        self.parts = [part for part in self.parts if part.entry.call.is_wanted(self.started)]
        for entry, first, end in self.parts:
            self.rows += entry.rows[first:end]
        # Whatever a batch raises belongs to its own requests; the thread goes on.
        try:
            if self.rows:
                self.results = run(self.key, self.rows)
            if len(self.results) != len(self.rows):
                raise RuntimeError(f"expected {len(self.rows)} results, got {len(self.results)}")
        except BaseException as error:  # noqa: BLE001
            # A future takes nothing else.
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                self.error = error
            else:
                self.error = RuntimeError(f"the batch raised {error!r}")
        self.ended = time.monotonic()

    def fail(self, error: Exception) -> None:
        """Ends all calls that it has rows of with an error."""
        for entry, *_ in self.parts:
            entry.call.fail(error)

    def deliver(self) -> None:
        """Hands every call the results of its own rows."""
        start = 0
        for entry, first, end in self.parts:
            count = end - first
            entry.call.deliver(entry.places[first:end], self.results[start : start + count])
            start += count

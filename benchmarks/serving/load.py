"""Requests over connections that are kept, so many under way at a time: a process of its own.

One thread waits for all connections at once and does as little as it can for an answer:
whether answers are right is found out when the time is up, of every one of them. How much of the
CPU it took says how far it was from being the limit.
"""

import collections
import gc
import math
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.worker import answer_calls
from benchmarks.serving.answers import fault
from benchmarks.serving.texts import Wanted
from benchmarks.serving.wire import Answer, WireError, first_answer, post

# How long the last answers may take, and how many requests a plan sends at most.
PATIENCE_S = 30.0
MAX_REQUESTS = 1_000_000
# Connections that fail one after the other until a plan is given up.
MAX_FAILURES = 100
CHUNK_BYTES = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to send where: ``bodies`` in turn over ``connections`` that are always waiting.

    What is answered in the first ``warm_s`` is not counted, then ``seconds`` are. With ``pause_s``
    every request waits for so long before it is sent, which one connection alone can do. ``found``
    is where the candidates are in an answer, and ``tolerance`` how far off their probabilities may
    be; an empty one wants the bytes of ``exact``.
    """

    port: int
    path: str
    bodies: Sequence[str]
    wanted: Sequence[Wanted]
    found: Sequence[str | int]
    tolerance: float
    connections: int
    seconds: float
    warm_s: float
    pause_s: float = 0.0
    exact: str = ""
    max_requests: int = MAX_REQUESTS

    def __post_init__(self) -> None:
        if self.pause_s and self.connections != 1:
            raise ValueError(f"pause_s: expected 1 connection with it, got {self.connections}")


@dataclass(slots=True)
class Connection:
    """A connection with one request under way: which, and since when."""

    stream: socket.socket
    received: bytearray = field(default_factory=bytearray)
    index: int = 0
    sent: float = 0.0


@dataclass(slots=True)
class Outcome:
    """Every answer that came, with the moments of its request and of its end; and what failed."""

    answers: list[tuple[int, float, float, Answer]] = field(default_factory=list)
    failures: collections.Counter[str] = field(default_factory=collections.Counter)


class Drive:
    """Carries out one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._requests = [post(plan.path, b.encode(), port=plan.port) for b in plan.bodies]
        self._num_sent = 0
        self._until = 0.0
        self._waiting: dict[int, Connection] = {}
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Sends until the time is up, then waits for what is under way."""
        self._until = time.perf_counter() + self._plan.warm_s + self._plan.seconds
        with select.epoll() as poll:
            for _ in range(self._plan.connections):
                self._open(poll)
            while self._waiting:
                events = poll.poll(PATIENCE_S)
                for descriptor, _ in events:
                    self._read(poll, self._waiting[descriptor])
                if not events:
                    self._give_up()
        return self._outcome

    def _open(self, poll: select.epoll) -> None:
        connected = socket.create_connection(("127.0.0.1", self._plan.port), timeout=PATIENCE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(connected, select.EPOLLIN)
        connection = Connection(connected)
        self._waiting[connected.fileno()] = connection
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        if self._plan.pause_s:
            time.sleep(self._plan.pause_s)
        connection.index = self._num_sent % len(self._requests)
        self._num_sent += 1
        connection.sent = time.perf_counter()
        connection.stream.sendall(self._requests[connection.index])

    def _read(self, poll: select.epoll, connection: Connection) -> None:
        try:
            received = connection.stream.recv(CHUNK_BYTES)
            if not received:
                raise ConnectionResetError
            connection.received += received
            if (answer := first_answer(connection.received)) is None:
                return
            now = time.perf_counter()
            self._outcome.answers.append((connection.index, connection.sent, now, answer))
            del connection.received[: answer.num_bytes]
            if now < self._until and self._num_sent < self._plan.max_requests:
                self._send(connection)
            else:
                self._close(connection)
        except (OSError, WireError) as error:
            self._fail(poll, connection, type(error).__name__)

    def _fail(self, poll: select.epoll, connection: Connection, reason: str) -> None:
        """Notes that a request got no answer, and goes on with a new connection."""
        self._outcome.failures[reason] += 1
        self._close(connection)
        is_over = time.perf_counter() >= self._until
        if not is_over and self._outcome.failures.total() < MAX_FAILURES:
            self._open(poll)

    def _close(self, connection: Connection) -> None:
        del self._waiting[connection.stream.fileno()]
        connection.stream.close()

    def _give_up(self) -> None:
        self._outcome.failures["timeout"] += len(self._waiting)
        for connection in list(self._waiting.values()):
            self._close(connection)


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """The least of the values that at least ``share`` of all do not exceed; None of no values."""
    return ascending[max(math.ceil(share * len(ascending)), 1) - 1] if ascending else None


def measure(plan: Plan) -> dict[str, Any]:
    """What came of a plan: the rate in its window, latencies of what was sent in it, faults."""
    gc.collect()
    gc.disable()
    cpu_before = time.process_time()
    started = time.perf_counter()
    outcome = Drive(plan).run()
    cpu_s = time.process_time() - cpu_before
    gc.enable()
    begin, end = started + plan.warm_s, started + plan.warm_s + plan.seconds
    inside = [one for one in outcome.answers if one[1] >= begin]
    latencies_ms = sorted(1e3 * (ended - sent) for _, sent, ended, _ in inside)
    faults = outcome.failures + _faults(plan, outcome)
    return {
        "per_s": sum(begin <= ended < end for *_, ended, _ in outcome.answers) / plan.seconds,
        "p50_ms": quantile(latencies_ms, 0.5),
        "p99_ms": quantile(latencies_ms, 0.99),
        "num_answers": len(outcome.answers),
        "num_errors": faults.total(),
        "errors": dict(faults.most_common(5)),
        "client_cpu_us": 1e6 * cpu_s / max(len(outcome.answers), 1),
    }


def _faults(plan: Plan, outcome: Outcome) -> collections.Counter[str]:
    """What is wrong with answers; those that are the same are looked at once."""
    alike = collections.Counter(
        (index, answer.status, answer.body) for index, _, _, answer in outcome.answers
    )
    faults: collections.Counter[str] = collections.Counter()
    for (index, status, body), count in alike.items():
        if told := _fault(plan, index, status, body):
            faults[told] += count
    return faults


def _fault(plan: Plan, index: int, status: int, body: bytes) -> str:
    if status != 200:
        return f"status {status}"
    if not plan.found:
        return "" if body == plan.exact.encode() else "another body"
    return fault(body, plan.found, plan.wanted[index], plan.tolerance)


class Load:
    """What other processes call: one plan after another."""

    def measure(self, **plan: Any) -> dict[str, Any]:
        """What came of a plan."""
        return measure(Plan(**plan))


if __name__ == "__main__":
    answer_calls(Load)

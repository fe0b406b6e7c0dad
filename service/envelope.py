"""What every answer carries: a request id and its timing; and who is told of it afterwards."""

import random
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Gauge
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.batches import Ticket
from service.lifecycle import Lifecycle, Phase
from service.rehearsal import IS_REHEARSAL

MAX_REQUEST_ID = 128
# The status that is noted where a client left before it was answered; nobody receives it.
CLIENT_LEFT = 499
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Ids tell requests apart and are no secret; a generator of our own asks the system but once.
_ids = random.Random()
_PRINTABLE = frozenset(string.ascii_letters + string.digits + "-_.:/+=@")


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A request and its answer, once it is over.

    ``path`` is the template of its route and ``target`` what the client wrote; ``started`` and
    ``ended`` are monotonic. ``usage`` is that of the answer, where it has one.
    """

    method: str
    path: str
    target: str
    status: int
    request_id: str
    headers: Headers
    started: float
    ended: float
    ticket: Ticket
    usage: Any
    is_rehearsal: bool


class Envelope:
    """Gives every answer an ``X-Request-Id`` and a ``Server-Timing`` header, then tells observers.

    ``in_progress`` counts the requests that are under way. Once the service leaves, connections are
    closed with the answers on them, so that none is idle, and about to be written to, when it ends.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        lifecycle: Lifecycle,
        observers: Sequence[Callable[[Exchange], None]] = (),
        in_progress: Gauge | None = None,
    ) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._observers = observers
        self._in_progress = in_progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id(Headers(scope=scope))
        status = CLIENT_LEFT

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._write_headers(message, state, time.monotonic() - started)
            await send(message)

        if self._in_progress:
            self._in_progress.inc()
        with logs.within_request(state["request_id"]):
            try:
                await self._app(scope, receive, send_with_headers)
            finally:
                self._conclude(_exchange(scope, status, started))

    def _conclude(self, exchange: Exchange) -> None:
        if self._in_progress:
            self._in_progress.dec()
        for observe in self._observers:
            observe(exchange)

    def _write_headers(self, message: Message, state: dict[str, Any], total_s: float) -> None:
        timing = server_timing(state.get("ticket"), total_s)
        message["headers"] = [
            *message.get("headers", ()),
            (b"x-request-id", state["request_id"].encode()),
            (b"server-timing", timing.encode()),
        ]
        if self._lifecycle.phase is not Phase.SERVING:
            MutableHeaders(scope=message)["Connection"] = "close"


def _exchange(scope: Scope, status: int, started: float) -> Exchange:
    state = scope["state"]
    method = scope["method"]
    ticket = state.get("ticket") or Ticket(deadline=started)
    return Exchange(
        # Both are labels of metrics, which callers must not be able to make up.
        method=method if method in METHODS else "OTHER",
        path=getattr(scope.get("route"), "path", "unmatched"),
        target=scope["path"],
        status=status,
        request_id=state["request_id"],
        headers=Headers(scope=scope),
        started=started,
        ended=time.monotonic(),
        ticket=ticket,
        usage=state.get("usage") or ticket.usage,
        is_rehearsal=bool(state.get(IS_REHEARSAL)),
    )


def request_id(headers: Headers) -> str:
    """The caller's ``X-Request-Id`` where it is a sane one, else a new one."""
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= MAX_REQUEST_ID and _PRINTABLE.issuperset(given):
        return given
    return f"{_ids.getrandbits(96):024x}"


def server_timing(ticket: Ticket | None, total_s: float) -> str:
    """The value of a ``Server-Timing`` header, in milliseconds."""
    queue_s, compute_s = (ticket.queue_s, ticket.compute_s) if ticket else (0.0, 0.0)
    return (
        f"queue;dur={1000 * queue_s:.2f}, compute;dur={1000 * compute_s:.2f}, "
        f"total;dur={1000 * total_s:.2f}"
    )

"""What every answer carries: a request id and its timing; and who is told of it afterwards."""

import contextlib
import secrets
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.batcher import Ticket
from service.lifecycle import Lifecycle, Phase
from service.rehearsal import IS_REHEARSAL

MAX_REQUEST_ID = 128
# The status that is noted where a client left before it was answered; nobody receives it.
CLIENT_LEFT = 499
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
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

    ``under_way`` surrounds every request. Once the service leaves, connections are closed with the
    answers on them, so that none is idle, and about to be written to, when it ends.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        lifecycle: Lifecycle,
        observers: Sequence[Callable[[Exchange], None]] = (),
        under_way: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._observers = observers
        self._under_way = under_way

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

        with self._under_way(), logs.within_request(state["request_id"]):
            try:
                await self._app(scope, receive, send_with_headers)
            finally:
                exchange = _exchange(scope, status, started)
                for observe in self._observers:
                    observe(exchange)

    def _write_headers(self, message: Message, state: dict[str, Any], total_s: float) -> None:
        headers = MutableHeaders(scope=message)
        headers["X-Request-Id"] = state["request_id"]
        headers["Server-Timing"] = server_timing(state.get("ticket"), total_s)
        if self._lifecycle.phase is not Phase.SERVING:
            headers["Connection"] = "close"


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
    return secrets.token_hex(12)


def server_timing(ticket: Ticket | None, total_s: float) -> str:
    """The value of a ``Server-Timing`` header, in milliseconds."""
    queue_s, compute_s = (ticket.queue_s, ticket.compute_s) if ticket else (0.0, 0.0)
    spent = {"queue": queue_s, "compute": compute_s, "total": total_s}
    return ", ".join(f"{name};dur={1000 * seconds:.2f}" for name, seconds in spent.items())

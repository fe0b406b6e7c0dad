"""Which calls are tried again, when, and until when."""

import email.utils
import random
import time
from datetime import UTC, datetime

import httpx2

from triwire.calls.request import Request
from triwire.connection import Connection

# The service is full or not there yet; nothing of the request was done.
RETRIED = frozenset({429, 503})
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0


class Attempts:
    """The attempts of one call, which share one deadline.

    A refused connection, a 429 and a 503 are followed by another attempt, after a pause that
    doubles every time and is at least what ``Retry-After`` says. Nothing else is, as it may have
    been done.
    """

    def __init__(self, connection: Connection, request: Request) -> None:
        self._left = 0 if request.is_probe else connection.max_retries
        self._deadline = time.monotonic() + connection.timeout_s
        self._pause_s = FIRST_PAUSE_S

    @property
    def remaining_s(self) -> float:
        """How long an attempt that starts now may take."""
        return max(self._deadline - time.monotonic(), 0.001)

    def pause_s(self, outcome: httpx2.Response | Exception) -> float | None:
        """How long to wait before the next attempt; None where there is none."""
        if self._left <= 0 or not _may_be_tried_again(outcome):
            return None
        asked_s = _retry_after_s(outcome) if isinstance(outcome, httpx2.Response) else 0.0
        # Clients that were turned away together need not come back together.
        pause_s = max(self._pause_s, asked_s) * random.uniform(1.0, 1.25)
        if pause_s >= self.remaining_s:
            return None
        self._left -= 1
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s


def _may_be_tried_again(outcome: httpx2.Response | Exception) -> bool:
    if isinstance(outcome, httpx2.Response):
        return outcome.status_code in RETRIED
    return isinstance(outcome, httpx2.ConnectError)


def _retry_after_s(response: httpx2.Response) -> float:
    """What ``Retry-After`` asks for, in seconds or as a date; 0 where it says nothing."""
    value = response.headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)

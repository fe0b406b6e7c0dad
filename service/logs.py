"""The log: lines to read on a terminal, JSON for machines, and the request that each belongs to."""

import asyncio
import contextlib
import contextvars
import functools
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal

import orjson

from service.errors import excerpt

AUTO = "auto"
LogFormat = Literal["auto", "json", "text"]

_request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def within_request(request_id: str) -> Iterator[None]:
    """Whatever is logged inside belongs to that request."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def set_up(log_format: LogFormat, level: str, stream: Any = None) -> None:
    """Writes the log of this process to ``stream``, by default the standard error.

    In "auto" it is for reading where the stream is a terminal, and otherwise JSON.
    """
    stream = sys.stderr if stream is None else stream
    if log_format == AUTO:
        log_format = "text" if stream.isatty() else "json"
    handler = _Lines(stream)
    # No line shows threads or processes, and every record would look them up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # They tell of their own insides at the level that is meant for what we do.
    for library in ("absl", "jax"):
        logging.getLogger(library).setLevel(logging.WARNING)


class _Lines(logging.StreamHandler[Any]):
    """Writes the lines of one pass of the event loop together, after that pass.

    Many requests end in one pass, and each line by itself would be a call of the system. A warning,
    or worse, is written at once with all that came before it, and so is what is logged outside a
    loop.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        # The loop that is going to write them; another one may never run again.
        self._writing: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a line until it is written."""
        # As in every handler: what fails here must not end the work that is logged.
        try:
            self._lines.append(self.format(record))
            loop = _running_loop()
            if loop is None or record.levelno >= logging.WARNING:
                self.flush()
            elif loop is not self._writing:
                self._writing = loop
                loop.call_soon(self.flush)
        except Exception:  # noqa: BLE001
            self.handleError(record)

    def flush(self) -> None:
        """Writes what has not been written yet."""
        assert self.lock
        with self.lock:
            lines, self._lines, self._writing = self._lines, [], None
            if lines:
                self.stream.write(self.terminator.join([*lines, ""]))
            super().flush()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class JsonFormatter(logging.Formatter):
    """An object on a line: time in UTC, level, logger, message, request id, and more fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        content: dict[str, Any] = {
            "time": f"{_moment(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := _request_id.get()) is not None:
            content["request_id"] = request_id
        content |= getattr(record, "fields", {})
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(content, default=str).decode()
        # It knows no lone surrogates, and no integers that are longer than others know them.
        except TypeError:
            return json.dumps(content, ensure_ascii=False, default=str)


@functools.lru_cache(maxsize=2)
def _moment(second: int) -> str:
    """A second in UTC; many lines are of the same."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class TextFormatter(logging.Formatter):
    """A line to read, with the request id at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line, without the exception that may follow it."""
        line = super().formatMessage(record)
        request_id = _request_id.get()
        return f"{line} [{request_id}]" if request_id else line


def log_exchange(exchange: Any) -> None:
    """Logs a request and its answer, and nothing of what was in them."""
    level = logging.DEBUG if exchange.is_rehearsal else logging.INFO
    if not logger.isEnabledFor(level):
        return
    total_s, ticket = exchange.ended - exchange.started, exchange.ticket
    # A path can hold line breaks, and must not forge a line of the log.
    target, total_ms = excerpt(exchange.target, 100), 1000 * total_s
    fields = {
        "method": exchange.method,
        "path": exchange.path,
        "status": exchange.status,
        "task": ticket.task,
        "total_ms": round(total_ms, 3),
        "queue_ms": round(1000 * ticket.queue_s, 3),
        "compute_ms": round(1000 * ticket.compute_s, 3),
    }
    message = f"{exchange.method} {target} {exchange.status} {total_ms:.1f} ms"
    # Not through ``log``, which looks for the line of code that it is called from.
    logger.handle(
        logger.makeRecord(logger.name, level, "", 0, message, (), None, extra={"fields": fields})
    )

"""Spans of OpenTelemetry for requests; needs the extra ``otel``, and without it there are none.

Spans are written when a request is over, from the moments that were noted on the way.
"""

import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

from service.envelope import Exchange


class TracingError(ValueError):
    """Spans were asked for and cannot be written."""


def exporting() -> Any:
    """A provider of tracers that sends spans to where the ``OTEL_*`` variables say.

    Raises:
        TracingError: if the extra is not installed.
    """
    wanted = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    if not all(map(_is_installed, wanted)):
        raise TracingError("tracing: expected the extra otel to be installed, found it missing")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", "triwire")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def span_writer(provider: Any) -> Callable[[Exchange], None]:
    """Writes every request as a span, with one for every wait in the queue and every batch."""
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

    tracer = provider.get_tracer("triwire")

    def write(exchange: Exchange) -> None:
        if exchange.is_rehearsal:
            return
        # Spans are in time since 1970, and what was noted is not.
        offset_s = time.time() - time.monotonic()

        def moment_ns(monotonic_s: float) -> int:
            return int((monotonic_s + offset_s) * 1e9)

        span = tracer.start_span(
            f"{exchange.method} {exchange.path}",
            context=extract(dict(exchange.headers)),
            kind=SpanKind.SERVER,
            start_time=moment_ns(exchange.started),
            attributes={
                "http.request.method": exchange.method,
                "http.route": exchange.path,
                "http.response.status_code": exchange.status,
                "triwire.request_id": exchange.request_id,
                "triwire.task": exchange.ticket.task,
            },
        )
        if exchange.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        for entered, began, ended in exchange.ticket.batches:
            for name, start, end in (("queue", entered, began), ("compute", began, ended)):
                part = tracer.start_span(name, context=inside, start_time=moment_ns(start))
                part.end(end_time=moment_ns(end))
        span.end(end_time=moment_ns(exchange.ended))

    return write

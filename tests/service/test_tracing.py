import importlib.util

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service import tracing
from service.tracing import TracingError
from tests.service.fakes import fake_app, reverse, serving

SOURCE = "abcdefghijkl"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def test_a_request_is_a_span_that_continues_its_caller_and_holds_queue_and_compute(
    exporter, provider
):
    with serving(fake_app(tracer_provider=provider)) as client:
        exporter.clear()
        caller = f"00-{'a' * 32}-{'b' * 16}-01"
        headers = {"traceparent": caller, "X-Request-Id": "my-id"}
        client.post("/v1/decode", json={"inputs": SOURCE}, headers=headers)
    queue, compute, request = exporter.get_finished_spans()
    assert request.name == "POST /v1/decode"
    assert request.attributes["http.route"] == "/v1/decode"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["triwire.request_id"] == "my-id"
    assert request.attributes["triwire.task"] == "decode"
    assert f"{request.context.trace_id:x}" == "a" * 32
    assert f"{request.parent.span_id:x}" == "b" * 16
    assert (queue.name, compute.name) == ("queue", "compute")
    for part in (queue, compute):
        assert part.parent.span_id == request.context.span_id
        assert request.start_time <= part.start_time <= part.end_time <= request.end_time
    assert queue.end_time == compute.start_time


def test_a_fault_of_ours_is_an_error_and_a_callers_is_not(exporter, provider):
    def run(rows):
        raise RuntimeError

    with serving(fake_app(run, tracer_provider=provider)) as client:
        exporter.clear()
        client.post("/v1/decode", json={"inputs": "?"})
        client.post("/v1/decode", json={"inputs": SOURCE})
    spans = {s.attributes["http.response.status_code"]: s for s in _requests(exporter)}
    assert spans[422].status.is_unset
    assert not spans[500].status.is_ok
    assert not spans[500].status.is_unset


def _requests(exporter):
    return [s for s in exporter.get_finished_spans() if "http.route" in s.attributes]


def test_without_the_extra_asking_for_spans_is_an_error_and_not_asking_is_none(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TracingError, match="tracing: expected the extra otel to be installed"):
        tracing.exporting()
    with serving(fake_app(reverse)) as client:
        assert client.post("/v1/decode", json={"inputs": SOURCE}).status_code == 200


@pytest.mark.parametrize(("variable", "name"), [(None, "triwire"), ("ours", "ours")])
def test_spans_are_exported_under_the_name_that_the_environment_gives(monkeypatch, variable, name):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    if variable:
        monkeypatch.setenv("OTEL_SERVICE_NAME", variable)
    provider = tracing.exporting()
    try:
        assert provider.resource.attributes["service.name"] == name
    finally:
        provider.shutdown()

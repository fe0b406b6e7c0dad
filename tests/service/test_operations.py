"""Keys, limits, metrics, CORS, reloading and the way out, as clients meet them."""

import asyncio
import re
import signal
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.errors import NonFiniteOutput
from service.lifecycle import Phase
from service.server import Server
from tests.service.fakes import PATIENCE_S, blocked_by, fake_app, reverse, serving

SOURCE = "abcdefghijkl"
KEY = {"Authorization": "Bearer the-key"}


def post(client, headers=None, path="/v1/decode", **body):
    return client.post(path, json={"inputs": SOURCE} | body, headers=headers)


@pytest.fixture(scope="module")
def guarded():
    with serving(fake_app(api_keys="the-key,another")) as client:
        yield client


def test_a_call_without_a_key_is_refused_in_the_shape_of_its_protocol(guarded):
    openai = post(guarded)
    assert openai.status_code == 401
    error = openai.json()["error"]
    assert list(error) == ["message", "type", "param", "code", "request_id"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert openai.headers["www-authenticate"] == "Bearer"
    hugging_face = guarded.post("/models/reversal", json={})
    assert hugging_face.status_code == 401
    assert hugging_face.json() == {"error": error["message"], "error_type": "authentication"}
    for path in ("/v2", "/v2/models/reversal/infer"):
        triton = guarded.post(path, json={})
        assert triton.status_code == 401
        assert triton.json() == {"error": error["message"]}
    wrong = post(guarded, {"Authorization": "Bearer wrong"})
    assert wrong.status_code == 401
    assert wrong.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert "wrong" not in wrong.text
    assert post(guarded, KEY).status_code == 200


def test_every_error_has_the_shape_of_its_path(guarded):
    assert guarded.get("/models/x/y/z", headers=KEY).json() == {
        "error": "GET '/models/x/y/z': Not Found",
        "error_type": "validation",
    }
    assert guarded.get("/v2/x", headers=KEY).json() == {"error": "GET '/v2/x': Not Found"}
    assert guarded.get("/v1/x", headers=KEY).json()["error"]["code"] == "no_such_call"


def test_probes_metrics_and_docs_are_open_unless_they_are_protected(guarded):
    for path in ("/livez", "/readyz", "/metrics", "/docs", "/openapi.json"):
        assert guarded.get(path).status_code == 200, path
    with serving(fake_app(api_keys="the-key", protected="metrics,docs")) as client:
        for path in ("/metrics", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=KEY).status_code == 200


def test_the_documentation_asks_for_a_key_where_one_is_needed(guarded, client):
    assert "HTTPBearer" in guarded.get("/openapi.json").text
    assert "HTTPBearer" not in client.get("/openapi.json").text


def test_a_page_of_an_origin_that_is_allowed_can_call_and_read_what_it_needs():
    origin = "https://one.example"
    with serving(fake_app(cors_origins=origin, api_keys="the-key")) as client:
        asked = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-request-id",
        }
        before = client.options("/v1/decode", headers=asked)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == origin
        assert "x-request-id" in before.headers["access-control-allow-headers"].lower()
        assert "x-request-id" in before.headers
        for headers in (KEY, {}):
            answer = post(client, headers | {"Origin": origin})
            assert answer.status_code == (200 if headers else 401)
            assert answer.headers["access-control-allow-origin"] == origin
            exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
            assert {"x-request-id", "server-timing", "retry-after"} <= set(exposed)
        other = client.options("/v1/decode", headers=asked | {"Origin": "https://two.example"})
        assert "access-control-allow-origin" not in other.headers


def test_by_default_no_page_of_another_origin_can_call():
    origin = {"Origin": "https://one.example"}
    asked = origin | {"Access-Control-Request-Method": "POST"}
    with serving(fake_app()) as client:
        answer = client.get("/v1/models", headers=origin)
        assert "access-control-allow-origin" not in answer.headers
        assert client.options("/v1/decode", headers=asked).status_code == 405


def test_more_requests_than_may_be_under_way_are_refused_while_probes_are_answered(gate, threads):
    with serving(fake_app(blocked_by(gate), max_concurrent_requests=1)) as client:
        held = threads.submit(post, client)
        assert gate.entered.wait(PATIENCE_S)
        refused = post(client)
        assert refused.status_code == 429
        assert "retry-after" in refused.headers
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert client.get("/readyz").status_code == 200
        gate.opened.set()
        assert held.result(PATIENCE_S).status_code == 200
        assert post(client).status_code == 200


def test_a_batch_that_never_ends_turns_readiness_off(gate, threads):
    with serving(fake_app(blocked_by(gate), request_timeout_s=1.0)) as client:
        held = threads.submit(post, client)
        assert gate.entered.wait(PATIENCE_S)
        assert held.result(PATIENCE_S).status_code == 504
        # The batch began after the request did, so it has been running for less than that so far.
        answer = _readiness(client, 503)
        assert "one batch has been running" in answer.json()["error"]["message"]
        assert client.get("/livez").status_code == 200
        gate.opened.set()
        _readiness(client, 200)


def _readiness(client, status):
    """What /readyz answers once it has that status."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := client.get("/readyz")).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


def values(client):
    """All samples of /metrics, by name and the values of their labels, which are sorted by name."""
    text = client.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_of_requests_batches_tokens_and_faults():
    def run(rows):
        if len(rows) == 3:
            return [NonFiniteOutput("x")] * 3
        if len(rows) == 4:
            raise RuntimeError
        return reverse(rows)

    with serving(fake_app(run)) as client:
        before = values(client)
        post(client)
        post(client, inputs=[SOURCE] * 2)
        post(client, inputs=[SOURCE] * 3)
        post(client, inputs=[SOURCE] * 4)
        post(client, inputs="?")
        client.get("/nowhere")
        after = values(client)
    slot = ("reversal", "decode", "1")
    assert before["triwire_ready",] == 1
    assert after["triwire_requests_total", "POST", "/v1/decode", "200", "decode"] == 2
    assert after["triwire_requests_total", "POST", "/v1/decode", "500", "decode"] == 2
    assert after["triwire_requests_total", "POST", "/v1/decode", "422", ""] == 1
    assert after["triwire_requests_total", "GET", "unmatched", "404", ""] == 1
    assert after["triwire_request_seconds_count", "/v1/decode", "decode"] == 4
    # That of the scrape itself.
    assert after["triwire_requests_in_progress",] == 1
    assert after["triwire_tokens_total", "input", "decode"] == 36
    assert after["triwire_tokens_total", "output", "decode"] == 36
    # Two rows are cheaper in turn than with two rows of padding.
    assert after["triwire_batch_rows_count", *slot] == 4
    assert after["triwire_batch_rows_sum", *slot] == 6
    # Batches of 1, 1, 1 and 4 rows of 12 places each.
    assert after["triwire_batch_tokens_total", "real", *slot] == 6 * 12
    assert after["triwire_batch_tokens_total", "padding", *slot] == (7 - 6) * 12
    assert after["triwire_compute_seconds_count", *slot] == 4
    assert after["triwire_queue_seconds_count", *slot] == 5
    assert after["triwire_non_finite_outputs_total", *slot] == 3
    assert after["triwire_failed_batches_total", *slot] == 1
    assert after["triwire_queue_rows",] == 0
    assert after["triwire_worker_restarts_total",] == 0
    assert after["triwire_compilations_after_ready_total",] == 0
    assert after["triwire_model_info", "reversal", "decode", "1", "encoder-decoder"] == 1
    assert after["process_resident_memory_bytes",] > 2**20


def test_metrics_of_two_applications_are_apart(client):
    with serving(fake_app()) as other:
        post(other)
        ours = values(other)
    key = ("triwire_requests_total", "POST", "/v1/decode", "200", "decode")
    assert ours[key] == 1


def test_metrics_come_in_the_format_that_is_asked_for(client):
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    modern = client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")


def test_every_metric_is_documented(client):
    from pathlib import Path

    documented = Path("docs/operations.md").read_text(encoding="utf-8")
    text = client.get("/metrics").text
    # Prometheus' own client adds to every counter when it was made.
    names = {n for n in re.findall(r"# TYPE (triwire_\w+) ", text) if not n.endswith("_created")}
    assert names
    assert {name for name in names if f"`{name}`" not in documented} == set()


def test_nothing_was_compiled_for_any_request_of_the_shared_application(client, ask):
    """Random lengths, batch sizes and options follow in test_serving.py."""
    before = values(client)
    ask("/v1/decode", inputs=[SOURCE] * 5, attention=True)
    ask("/v1/completions", prompt=["a", "time"], max_tokens=3, temperature=0.5, top_p=0.5, seed=1)
    ask("/v1/latents", inputs=["a" * n for n in (1, 40, 128)])
    after = values(client)
    name = ("triwire_compilations_total",)
    assert after[name] == before[name]


def test_reloading_over_http_is_refused_where_no_keys_are_set_up():
    with serving(fake_app()) as client:
        answer = client.post("/v1/models/reversal/reload")
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "not_allowed"
        assert "send SIGHUP" in answer.json()["error"]["message"]


def test_reloading_over_http_needs_a_key_and_loads_that_model_in_the_background(guarded):
    registry, loads = guarded.app.state.context.registry, []
    load, registry.load = registry.load, lambda root, name=None: loads.append(name)
    try:
        assert guarded.post("/v1/models/reversal/reload").status_code == 401
        assert guarded.post("/v1/models/nothing/reload", headers=KEY).status_code == 404
        answer = guarded.post("/v1/models/reversal/reload", headers=KEY)
        assert answer.status_code == 202
        assert answer.json() == {"id": "reversal", "object": "model", "status": "loading"}
        deadline = time.monotonic() + PATIENCE_S
        while not loads:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert loads == ["reversal"]
    finally:
        registry.load = load


def test_why_the_last_load_failed_is_told_while_the_old_version_serves(guarded):
    registry = guarded.app.state.context.registry
    registry.failures["reversal"] = "reversal/2: a leaf is missing"
    registry.loading["reversal"] = "3 of 6 shapes compiled"
    try:
        model = guarded.get("/v1/models/reversal", headers=KEY).json()
        assert model["failure"] == "reversal/2: a leaf is missing"
        assert model["loading"] == "3 of 6 shapes compiled"
        assert model["version"] == 1
        assert post(guarded, KEY).status_code == 200
        assert guarded.get("/readyz").json()["failures"] == registry.failures
    finally:
        registry.failures.clear()
        registry.loading.clear()


def test_on_the_way_out_probes_say_no_first_and_then_nothing_new_begins(gate, threads):
    app = fake_app(blocked_by(gate))
    lifecycle = app.state.lifecycle
    with serving(app) as client:
        held = threads.submit(post, client)
        assert gate.entered.wait(PATIENCE_S)
        lifecycle.phase = Phase.LEAVING
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        late = threads.submit(post, client)
        while lifecycle.num_requests < 2:
            time.sleep(0.01)
        lifecycle.phase = Phase.DRAINING
        refused = post(client)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["message"] == "the service is shutting down"
        gate.opened.set()
        assert held.result(PATIENCE_S).status_code == 200
        assert late.result(PATIENCE_S).status_code == 200
        assert lifecycle.num_requests == 0


@pytest.mark.parametrize("is_answered", [True, False])
def test_leaving_waits_for_what_has_begun_and_not_for_ever(is_answered):
    app = fake_app(shutdown_grace_s=0, drain_timeout_s=PATIENCE_S if is_answered else 0.05)
    server, lifecycle = Server(app), app.state.lifecycle

    async def main():
        lifecycle.enter()
        server._start_leaving(0.0)
        server._start_leaving(0.0)
        await asyncio.sleep(0.01)
        assert lifecycle.phase is Phase.DRAINING
        assert not server.should_exit
        if is_answered:
            lifecycle.exit()
        await server._leaving

    asyncio.run(main())
    assert server.should_exit
    assert server.force_exit is not is_answered


def test_a_signal_before_the_start_and_a_second_one_end_the_process_at_once():
    server = Server(fake_app())
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit
    assert server.force_exit


def test_loading_anew_reads_the_keys_as_well(tmp_path, caplog):
    file = tmp_path / "keys"
    file.write_text("the-key")
    app = fake_app(api_keys_file=file)
    server = Server(app)
    with serving(app) as client:
        file.write_text("new-key")
        client.portal.call(server.reload)
        assert post(client, KEY).status_code == 401
        assert post(client, {"Authorization": "Bearer new-key"}).status_code == 200
        file.unlink()
        client.portal.call(server.reload)
        assert post(client, {"Authorization": "Bearer new-key"}).status_code == 200
    assert "the keys stay as they are" in caplog.text
    assert "new-key" not in caplog.text

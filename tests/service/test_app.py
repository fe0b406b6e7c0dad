import asyncio
import threading
from pathlib import Path

import orjson
import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.errors import NonFiniteOutput
from service.settings import Settings
from tests.service.fakes import (
    PATIENCE_S,
    blocked_by,
    exchange,
    fake_app,
    reverse,
    serving,
    wait_until,
)

SOURCE = "abcdefghijkl"


def post(client, **body):
    return client.post("/v1/decode", json={"inputs": SOURCE} | body)


def require_error(answer, status, code):
    assert answer.status_code == status
    error = answer.json()["error"]
    assert list(answer.json()) == ["error"]
    assert list(error) == ["message", "type", "param", "code", "request_id"]
    assert error["code"] == code
    assert error["request_id"] == answer.headers["x-request-id"]
    assert "total;dur=" in answer.headers["server-timing"]
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    return error


def test_while_models_load_the_process_lives_and_serves_nothing():
    app = create_app(Settings())
    loading = threading.Event()
    app.state.context.registry.load = lambda *_: loading.wait(PATIENCE_S)
    with TestClient(app) as client:
        assert client.get("/livez").status_code == 200
        for path in ("/readyz", "/health", "/v1/models", "/v1/models/reversal"):
            error = require_error(client.get(path), 503, "not_ready")
            assert error["message"] == "models are still loading"
        for path, body in {
            "/v1/decode": {"inputs": SOURCE},
            "/v1/fill-mask": {"inputs": "a<mask>"},
            "/v1/latents": {"inputs": "a"},
            "/v1/embeddings": {"input": "a"},
            "/v1/completions": {},
        }.items():
            require_error(client.post(path, json=body), 503, "not_ready")
        require_error(client.post("/v1/decode", content=b"{"), 415, "unsupported_media_type")
        loading.set()


def test_a_model_that_could_not_be_loaded_says_why_while_the_others_serve():
    app = fake_app()
    app.state.context.registry.failures["masked-lm"] = "masked-lm/1: a leaf is missing"
    with serving(app) as client:
        assert client.get("/readyz").json() == {
            "status": "ready",
            "models": ["reversal"],
            "failures": {"masked-lm": "masked-lm/1: a leaf is missing"},
        }
        error = require_error(client.get("/v1/models/masked-lm"), 503, "not_ready")
        assert "a leaf is missing" in error["message"]
        answer = client.post("/v1/fill-mask", json={"inputs": "a<mask>"})
        assert "a leaf is missing" in require_error(answer, 503, "not_ready")["message"]
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["reversal"]
        assert post(client).status_code == 200


@pytest.mark.parametrize("kind", ["empty", "damaged", "unreadable"])
def test_without_any_model_the_service_is_not_ready_and_says_why(kind, tmp_path):
    if kind == "damaged":
        (tmp_path / "lonely" / "1").mkdir(parents=True)
        (tmp_path / "lonely" / "1" / "model.json").write_text("{}")
    app = create_app(Settings(checkpoints=tmp_path))
    registry = app.state.context.registry
    if kind == "unreadable":

        def load(root, name):
            try:
                raise PermissionError(root)
            finally:
                registry.is_loaded = True

        registry.load = load
    with TestClient(app) as client:
        wait_until(lambda: registry.is_loaded)
        assert client.get("/livez").status_code == 200
        for path in ("/readyz", "/v1/models"):
            error = require_error(client.get(path), 503, "not_ready")
            assert error["message"].startswith("no model could be loaded")
            assert ("lonely/1/model.json: " in error["message"]) == (kind == "damaged")
        require_error(post(client), 503, "not_ready")


def test_readyz_tells_when_the_worker_is_down():
    app = fake_app()
    with serving(app) as client:
        client.portal.call(app.state.context.batcher.stop)
        assert client.get("/livez").status_code == 200
        require_error(client.get("/readyz"), 503, "not_ready")
        require_error(post(client), 503, "not_ready")


def test_other_calls_are_answered_while_a_batch_runs(gate, threads):
    with serving(fake_app(blocked_by(gate))) as client:
        held = threads.submit(post, client)
        assert gate.entered.wait(PATIENCE_S)
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/models").status_code == 200
        require_error(post(client, inputs="zzz"), 422, "invalid_value")
        assert not held.done()
        gate.opened.set()
        assert held.result(PATIENCE_S).json()["results"][0]["output"] == SOURCE[::-1]


def test_a_full_queue_is_answered_429_and_takes_requests_again_later(gate, threads):
    app = fake_app(blocked_by(gate), max_queue_rows=2)
    batcher = app.state.context.batcher
    with serving(app) as client:
        held = threads.submit(post, client)
        assert gate.entered.wait(PATIENCE_S)
        queued = threads.submit(post, client, inputs=[SOURCE] * 2)
        wait_until(lambda: batcher._num_rows == 2)
        for inputs in (SOURCE, [SOURCE]):
            error = require_error(post(client, inputs=inputs), 429, "queue_full")
            assert error["type"] == "rate_limit_error"
            assert error["message"] == "the queue is full: 2 of 2 rows wait"
        require_error(post(client, inputs=[SOURCE] * 3), 413, "too_large")
        gate.opened.set()
        assert held.result(PATIENCE_S).status_code == 200
        assert queued.result(PATIENCE_S).status_code == 200
        assert post(client).status_code == 200


def test_a_request_that_is_not_answered_in_time_gets_504(gate):
    with serving(fake_app(blocked_by(gate), request_timeout_s=0.05)) as client:
        error = require_error(post(client), 504, "deadline_exceeded")
        assert error["message"] == "the answer was not ready in time"
        gate.opened.set()
        wait_until(lambda: post(client).status_code == 200)


def test_a_fault_of_ours_tells_no_details_and_does_not_end_the_service(caplog):
    def run(rows):
        if len(rows) == 4:
            raise RuntimeError("the secret of the parameters")
        return reverse(rows)

    with serving(fake_app(run)) as client:
        answer = client.post(
            "/v1/decode", json={"inputs": [SOURCE] * 4}, headers={"X-Request-Id": "my-own-id"}
        )
        error = require_error(answer, 500, "internal_error")
        assert error["request_id"] == "my-own-id"
        assert error["type"] == "server_error"
        assert "secret" not in answer.text
        assert "queue;dur=" in answer.headers["server-timing"]
        assert post(client).status_code == 200
        assert client.get("/readyz").status_code == 200
    assert "my-own-id" in caplog.text
    assert "the secret of the parameters" in caplog.text


def test_an_answer_that_is_not_finite_is_a_fault_and_never_served(caplog):
    def run(rows):
        return [NonFiniteOutput("decode: log_probs holds NaN or infinity")] * len(rows)

    with serving(fake_app(run)) as client:
        answer = post(client)
        require_error(answer, 500, "non_finite_output")
        assert "NaN" not in answer.text
    assert "log_probs holds NaN" in caplog.text


def test_work_for_a_client_that_left_is_not_done(gate):
    seen = []

    def answer(rows):
        seen.append(len(rows))
        return gate("reversal", rows)

    app = fake_app(answer)

    async def main():
        async with app.router.lifespan_context(app):
            app.state.context.registry.load(Path())
            stays = asyncio.create_task(exchange(app, orjson.dumps({"inputs": SOURCE})))
            assert await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
            left = await exchange(app, orjson.dumps({"inputs": [SOURCE] * 3}), leaves=True)
            gate.opened.set()
            return await stays, left

    stayed, left = asyncio.run(main())
    assert stayed[0]["status"] == 200
    assert left[0]["status"] == 499
    assert seen == [1]


def test_an_unknown_path_and_a_wrong_method_are_told(client):
    error = require_error(client.get("/v1/nothing"), 404, "no_such_call")
    assert error["message"] == "GET '/v1/nothing': Not Found"
    answer = client.get("/v1/decode")
    error = require_error(answer, 405, "no_such_call")
    assert answer.headers["allow"] == "POST"
    assert error["message"] == "GET '/v1/decode': Method Not Allowed"

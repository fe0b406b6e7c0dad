import asyncio
import re

import pytest
from starlette.datastructures import Headers

from service.batches import Ticket
from service.envelope import Envelope, request_id, server_timing
from service.lifecycle import Phase
from tests.service.fakes import fake_app, serving


@pytest.mark.parametrize("given", ["a", "01HZY-x_y.z:/+=@", "x" * 128])
def test_a_sane_request_id_is_kept(given):
    assert request_id(Headers({"X-Request-Id": given})) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", 'a"b', "é", "a,b", "<script>"])
def test_any_other_request_id_is_replaced_by_a_new_one(given):
    made = {request_id(Headers(raw=[(b"x-request-id", given.encode("latin-1"))])) for _ in "12345"}
    assert len(made) == 5
    assert all(re.fullmatch("[0-9a-f]{24}", new) for new in made)


def test_server_timing_is_in_milliseconds_and_names_every_part():
    ticket = Ticket(deadline=0.0, queue_s=0.0015, compute_s=0.25)
    assert server_timing(ticket, 0.3) == "queue;dur=1.50, compute;dur=250.00, total;dur=300.00"
    assert server_timing(None, 0.01) == "queue;dur=0.00, compute;dur=0.00, total;dur=10.00"


def test_an_envelope_passes_on_what_is_no_request():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)

    asyncio.run(
        Envelope(app, lifecycle=fake_app().state.lifecycle)({"type": "lifespan"}, None, None)
    )
    assert seen == [{"type": "lifespan"}]


TIMING = re.compile(r"queue;dur=\d+\.\d\d, compute;dur=\d+\.\d\d, total;dur=\d+\.\d\d")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/livez"),
        ("GET", "/readyz"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/nothing"),
        ("GET", "/nothing"),
        ("GET", "/v1/decode"),
        ("POST", "/v1/decode"),
        ("POST", "/livez"),
        ("DELETE", "/v1/models"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
    ],
)
def test_every_answer_has_an_id_and_its_timing(client, method, path):
    own = client.request(method, path, headers={"X-Request-Id": "own-id"})
    assert own.headers["x-request-id"] == "own-id"
    assert TIMING.fullmatch(own.headers["server-timing"])
    other = client.request(method, path)
    assert re.fullmatch("[0-9a-f]{24}", other.headers["x-request-id"])
    if own.status_code >= 400:
        assert own.json()["error"]["request_id"] == "own-id"


def test_a_path_cannot_forge_a_line_of_the_log(client, caplog):
    caplog.set_level("INFO", "service.logs")
    client.get("/x%0a2026-01-01 ERROR all is lost" + "y" * 1000)
    (record,) = [r for r in caplog.records if r.name == "service.logs"]
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 250


def test_a_served_request_accounts_for_its_time(client):
    answer = client.post("/v1/decode", json={"inputs": "abcdefghijkl"})
    durations = re.findall(r"(\w+);dur=(\d+\.\d+)", answer.headers["server-timing"])
    spent = {name: float(value) for name, value in durations}
    assert spent["compute"] > 0
    assert spent["queue"] + spent["compute"] <= spent["total"] + 0.02


def test_connections_are_closed_with_their_answers_once_the_service_leaves():
    app = fake_app()
    with serving(app) as client:
        assert "connection" not in client.get("/livez").headers
        app.state.lifecycle.phase = Phase.LEAVING
        assert client.get("/livez").headers["connection"] == "close"


def test_what_the_path_and_method_of_a_request_may_be_called_is_bounded(client, caplog):
    """They are labels of metrics, which callers must not be able to multiply."""
    caplog.set_level("INFO", "service.logs")
    client.get("/v1/models/reversal")
    client.get("/nowhere/at/all")
    client.request("BREW", "/v1/models")
    records = [r.fields for r in caplog.records if r.name == "service.logs"]
    assert [(fields["method"], fields["path"]) for fields in records] == [
        ("GET", "/v1/models/{name}"),
        ("GET", "unmatched"),
        ("OTHER", "/v1/models"),
    ]

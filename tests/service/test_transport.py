import asyncio
import re

import orjson
import pytest
from fastapi import APIRouter, FastAPI, Request
from starlette.datastructures import Headers

from service.batcher import Ticket
from service.errors import MalformedRequest, TooLarge, UnsupportedMedia
from service.settings import Settings
from service.tasks.context import Context
from service.transport import Envelope, JsonResponse, StrictRoute, request_id, server_timing
from tests.service.fakes import exchange, talk

LIMIT = 100
JSON = [(b"content-type", b"application/json")]


@pytest.fixture(scope="module")
def echo():
    """An application that answers with the JSON that it was sent."""

    app = FastAPI()
    router = APIRouter(route_class=StrictRoute)

    @router.post("/v1/decode")
    async def post_decode(request: Request) -> JsonResponse:
        return JsonResponse(await request.json())

    app.include_router(router)
    app.state.context = Context.__new__(Context)
    object.__setattr__(app.state.context, "settings", Settings(max_body_bytes=LIMIT))
    return app


def send(app, *chunks, **options):
    return asyncio.run(exchange(app, *chunks, **options))


def test_json_comes_through_as_it_was_sent(echo):
    body = {"a": [1, 2.5, None, True, "é\U0001f642\u0000"], "b": {}}
    start, answer = send(echo, orjson.dumps(body))
    assert start["status"] == 200
    assert orjson.loads(answer["body"]) == body


def test_a_body_in_pieces_is_put_together(echo):
    body = b'{"text": "\xc3\xa9"}'
    _, answer = send(echo, *(body[i : i + 1] for i in range(len(body))))
    assert orjson.loads(answer["body"]) == {"text": "é"}


@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT])
@pytest.mark.parametrize("declared", [True, False])
def test_a_body_up_to_the_limit_is_taken(echo, size, declared):
    body = b'"' + b"x" * (size - 2) + b'"'
    more = [(b"content-length", str(size).encode())] if declared else []
    start, _ = send(echo, body[:50], body[50:], headers=[*JSON, *more])
    assert start["status"] == 200


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_read(echo):
    headers = [*JSON, (b"content-length", b"101")]
    with pytest.raises(TooLarge, match="at most 100 bytes, got 101"):
        send(echo, b"", headers=headers)


def test_a_body_of_unknown_length_is_refused_as_soon_as_it_is_too_large(echo):
    messages = [{"type": "http.request", "body": b"x" * 30, "more_body": True}] * 1000
    with pytest.raises(TooLarge, match="at most 100 bytes, got more"):
        asyncio.run(talk(echo, messages, JSON))
    assert len(messages) == 996


@pytest.mark.parametrize("declared", [b"-1", b"1e9", b"\xb2", b"many", b"", b"9" * 5000])
def test_a_senseless_content_length_does_not_let_more_through_or_fail_us(echo, declared):
    headers = [*JSON, (b"content-length", declared)]
    with pytest.raises(TooLarge):
        send(echo, b"x" * 101, headers=headers)


@pytest.mark.parametrize(
    "kind",
    [
        b"application/json",
        b"application/json; charset=utf-8",
        b"APPLICATION/JSON",
        b" application/json ;charset=utf-8",
    ],
)
def test_json_is_taken_by_its_type_however_it_is_written(echo, kind):
    start, _ = send(echo, b"1", headers=[(b"content-type", kind)])
    assert start["status"] == 200


@pytest.mark.parametrize(
    "kind",
    [
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/jsonp",
        b"application/vnd.api+json",
        b"application/octet-stream",
        b"\xff\xfe",
        b"",
    ],
)
def test_any_other_type_is_refused_by_name(echo, kind):
    with pytest.raises(UnsupportedMedia, match="Content-Type: expected application/json, got") as e:
        send(echo, b"1", headers=[(b"content-type", kind)])
    assert str(e.value).endswith(repr(kind.decode("latin-1").split(";")[0]) if kind else "none")


def test_a_body_without_a_type_is_refused(echo):
    with pytest.raises(UnsupportedMedia, match="got none"):
        send(echo, b"1", headers=[])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{}}",
        b"{'a': 1}",
        b'{"a": 1,}',
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"0x10",
        b"[" * 50,
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\x00"',
        b"\xef\xbb\xbf{}",
        '"é"'.encode("utf-16"),
        '"é"'.encode("latin-1"),
        b"\x1f\x8b\x08\x00",
        b"// comment\n1",
    ],
)
def test_what_is_no_json_in_utf_8_is_malformed(echo, body):
    with pytest.raises(MalformedRequest, match=r"expected a body of JSON in UTF-8: .+"):
        send(echo, body)


def test_a_client_that_leaves_while_it_sends_is_no_fault(echo):
    started = {"type": "http.request", "body": b'{"a', "more_body": True}
    (answer, _) = asyncio.run(talk(echo, [started, {"type": "http.disconnect"}], JSON))
    assert answer["status"] == 499


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

    asyncio.run(Envelope(app)({"type": "lifespan"}, None, None))
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
    caplog.set_level("INFO", "service.transport")
    client.get("/x%0a2026-01-01 ERROR all is lost" + "y" * 1000)
    (record,) = [r for r in caplog.records if r.name == "service.transport"]
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 250


def test_a_served_request_accounts_for_its_time(client):
    answer = client.post("/v1/decode", json={"inputs": "abcdefghijkl"})
    durations = re.findall(r"(\w+);dur=(\d+\.\d+)", answer.headers["server-timing"])
    spent = {name: float(value) for name, value in durations}
    assert spent["compute"] > 0
    assert spent["queue"] + spent["compute"] <= spent["total"] + 0.02

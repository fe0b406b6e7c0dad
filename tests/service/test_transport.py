import asyncio
import threading
from types import SimpleNamespace

import orjson
import pytest
from fastapi import APIRouter, FastAPI, Request, Response

from service import transport
from service.encoding import FEW_VALUES, to_json
from service.errors import MalformedRequest, TooLarge, UnsupportedMedia
from service.settings import Settings
from service.tasks.context import Context
from service.transport import (
    WATCHED_AFTER_S,
    JsonResponse,
    StrictRoute,
    _unless_client_leaves,
    json_response,
)
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


class Client:
    """A client that leaves once ``left`` is set; stands for the request that it has sent."""

    def __init__(self):
        self.left = asyncio.Event()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_work_is_cancelled_when_its_client_leaves_and_whoever_waits_for_it_is_not():
    async def main():
        client, outcome = Client(), []

        async def work():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                outcome.append("cancelled")
                raise

        asyncio.get_running_loop().call_later(0.01, client.left.set)
        answer = await _unless_client_leaves(client, work())
        own = asyncio.current_task()
        assert own
        await asyncio.sleep(0)
        return answer.status_code, outcome, own.cancelling()

    assert asyncio.run(main()) == (499, ["cancelled"], 0)


def test_a_client_that_leaves_as_the_work_ends_cancels_nothing_afterwards():
    async def main():
        client = Client()

        async def work():
            client.left.set()
            await asyncio.sleep(0)
            return Response(status_code=200)

        answer = await _unless_client_leaves(client, work())
        await asyncio.sleep(0.01)
        own = asyncio.current_task()
        assert own
        return answer.status_code in (200, 499), own.cancelling()

    assert asyncio.run(main()) == (True, 0)


def test_work_that_fails_fails_and_whoever_cancels_the_request_is_obeyed():
    async def fail():
        raise ValueError("broken")

    async def main():
        with pytest.raises(ValueError, match="broken"):
            await _unless_client_leaves(Client(), fail())
        task = asyncio.create_task(_unless_client_leaves(Client(), asyncio.sleep(100)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Nobody watches for a client any more.
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_nobody_watches_for_the_client_of_an_answer_that_is_soon_given():
    class Unwatched:
        """A request that notes who looks at its connection."""

        num_looks = 0

        async def receive(self):
            self.num_looks += 1
            await asyncio.Event().wait()

    async def work():
        await asyncio.sleep(WATCHED_AFTER_S / 5)
        return Response(status_code=200)

    async def main():
        request = Unwatched()
        answer = await _unless_client_leaves(request, work())
        await asyncio.sleep(1.5 * WATCHED_AFTER_S)
        return answer.status_code, request.num_looks

    assert asyncio.run(main()) == (200, 0)


@pytest.mark.parametrize("count", [FEW_VALUES, FEW_VALUES + 1])
def test_what_is_long_is_written_in_a_thread(monkeypatch, count):
    threads = []

    def write(content):
        threads.append(threading.current_thread())
        return to_json(content)

    monkeypatch.setattr(transport, "to_json", write)
    response = asyncio.run(json_response([0] * count))
    assert response.body == to_json([0] * count)
    assert len(threads) == (count > FEW_VALUES)
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("size", [1, FEW_VALUES + 1])
def test_an_answer_has_the_usage_of_its_content_unless_another_is_given(monkeypatch, size):
    content = SimpleNamespace(usage="its own")
    monkeypatch.setattr(transport, "to_json_if_small", lambda _: b"{}" if size == 1 else None)
    monkeypatch.setattr(transport, "to_json", lambda _: b"{}")
    assert asyncio.run(json_response(content)).usage == "its own"
    assert asyncio.run(json_response(content, "another")).usage == "another"
    assert asyncio.run(json_response([0])).usage is None

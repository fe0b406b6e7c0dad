import asyncio
from typing import Annotated

import orjson
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse

from service.answers import HANDLERS
from service.errors import InvalidInput
from service.routes import hugging_face, inference, latents, open_inference
from service.schemas import DecodeRequest, Strict
from service.settings import Settings
from service.shortcut import Shortcut, direct_handler
from service.tasks.context import Context
from service.transport import JsonResponse, StrictRoute
from tests.service.fakes import fake_app, serving, talk


class Body(Strict):
    """What the calls here take."""

    top_k: int


async def _method(request: Request) -> str:
    return request.method


MethodDep = Annotated[str, Depends(_method)]


async def far(scope, receive, send):
    """Stands for the framework, where what is not taken ends up."""
    await PlainTextResponse("the framework")(scope, receive, send)


def sent_to(router, path, body, kind=b"application/json", method="POST", more=None):
    """Status and body of the answer to a call that may take the shortcut."""
    app = FastAPI()
    app.state.context = Context.__new__(Context)
    object.__setattr__(app.state.context, "settings", Settings())
    shortcut = Shortcut(far, routes=router.routes, handlers=HANDLERS)

    async def serve(scope, receive, send):
        changes = {"app": app, "path": path, "method": method, "state": {"request_id": "x"}}
        await shortcut({**scope, **changes, **(more or {})}, receive, send)

    messages = [{"type": "http.request", "body": orjson.dumps(body), "more_body": False}]
    start, content = asyncio.run(talk(serve, messages, [(b"content-type", kind)]))
    return start["status"], content["body"].decode()


@pytest.fixture
def router():
    router = APIRouter(prefix="/v1", route_class=StrictRoute)

    @router.post("/double")
    async def post_double(request: Request, body: Body, method: MethodDep) -> Response:
        if body.top_k == 13:
            raise InvalidInput("expected luck", "top_k")
        return JsonResponse([method, request.url.path, 2 * body.top_k])

    return router


def test_an_endpoint_is_given_its_body_the_request_and_what_is_made_of_that(router):
    assert sent_to(router, "/v1/double", {"top_k": 4}) == (200, '["POST","/v1/double",8]')
    kind = b"Application/JSON; charset=utf-8"
    assert sent_to(router, "/v1/double", {"top_k": 4}, kind)[0] == 200


def test_what_is_wrong_is_told_as_the_framework_would_have_it_told(router):
    status, content = sent_to(router, "/v1/double", {"top_k": "4"})
    assert (status, orjson.loads(content)["error"]["param"]) == (422, "top_k")
    assert "top_k: expected an integer, got '4'" in content
    assert "expected an object, got null" in sent_to(router, "/v1/double", None)[1]
    assert "got [1]" in sent_to(router, "/v1/double", [1])[1]
    status, content = sent_to(router, "/v1/double", {"top_k": 13})
    assert (status, orjson.loads(content)["error"]["message"]) == (422, "top_k: expected luck")


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/v1/nothing"},
        {"path": "/v1/double/"},
        {"path": "/v1/double", "method": "GET"},
        {"path": "/v1/double", "kind": b"text/plain"},
        {"path": "/v1/double", "kind": b""},
    ],
)
def test_whatever_is_no_such_call_goes_the_way_of_the_framework(router, other):
    assert sent_to(router, body={"top_k": 4}, **other) == (200, "the framework")


def test_a_prefix_that_a_proxy_has_left_on_is_no_other_path(router):
    more = {"path": "/triwire/v1/double", "root_path": "/triwire"}
    assert sent_to(router, "", {"top_k": 1}, more=more)[0] == 200


def test_calls_on_texts_take_it_and_those_that_need_more_of_the_framework_do_not():
    taken = Shortcut(
        far, routes=[*inference.router.routes, *latents.router.routes], handlers=HANDLERS
    )
    assert sorted(taken._calls) == [
        "/v1/completions",
        "/v1/decode",
        "/v1/embeddings",
        "/v1/fill-mask",
        "/v1/latents",
    ]
    others = [
        *latents.npy_router.routes,
        *hugging_face.router.routes,
        *open_inference.infer_router.routes,
    ]
    assert Shortcut(far, routes=others, handlers=HANDLERS)._calls == {}


def test_an_endpoint_that_takes_more_than_can_be_given_is_left_alone():
    router = APIRouter(route_class=StrictRoute)

    async def deeper(method: MethodDep) -> str:
        return method

    def slow(request: Request) -> str:
        return request.method

    @router.post("/header")
    async def with_header(body: Body, accept: Annotated[str, Header()]) -> Response: ...

    @router.post("/deeper")
    async def with_deeper(body: Body, made: Annotated[str, Depends(deeper)]) -> Response: ...

    @router.post("/slow")
    async def with_slow(body: Body, made: Annotated[str, Depends(slow)]) -> Response: ...

    @router.post("/two")
    async def with_two(body: Body, other: DecodeRequest) -> Response: ...

    @router.post("/none")
    async def with_none(request: Request) -> Response: ...

    elsewhere = Query()

    @router.post("/query")
    async def with_query(body: Body, other: DecodeRequest = elsewhere) -> Response: ...

    @router.post("/threaded")
    def in_a_thread(body: Body) -> Response: ...

    @router.post("/guarded", dependencies=[Depends(_method)])
    async def with_a_guard(body: Body) -> Response: ...

    assert [direct_handler(route) for route in router.routes] == [None] * 8


# What differs from request to request.
VARYING = ("server-timing", "date")


@pytest.fixture(scope="module")
def both():
    """An application, and one whose calls all go the way of the framework."""
    short, long = fake_app(), fake_app()
    long.front = [middleware for middleware in long.front if middleware.cls is not Shortcut]
    assert len(long.front) == len(short.front) - 1
    with serving(short) as one, serving(long) as other:
        yield one, other


PATHS = ["/v1/completions", "/v1/decode", "/v1/embeddings", "/v1/fill-mask", "/v1/latents"]
BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"3",
    b'"text"',
    b"{}",
    b'{"inputs": 3}',
    b'{"inputs": ["a", 3], "model": []}',
    b'{"inputs": "abc", "nothing": 1}',
    b'{"inputs": "abcdefghijkl"}',
    b'{"inputs": "abcdefghijkl", "attention": true}',
    b'{"inputs": "", "stream": "yes"}',
    b'{"inputs": "abc", "model": "nobody"}',
    b'{"prompt": "abc", "max_tokens": -1}',
    b'{"input": [1, "a"]}',
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", BODIES)
def test_whichever_way_a_call_goes_it_is_answered_the_same(both, path, body):
    headers = {"Content-Type": "application/json", "X-Request-Id": "the-same"}
    answers = [client.post(path, content=body, headers=headers) for client in both]
    (status, short), (other, long) = [
        (a.status_code, {k: v for k, v in a.headers.items() if k not in VARYING}) for a in answers
    ]
    assert (status, short) == (other, long)
    assert answers[0].content == answers[1].content

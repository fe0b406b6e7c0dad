"""Calls with one fixed path, found and made without the framework's way to them.

For every request the framework goes through the routes anew and then through all that an endpoint
may need, which takes longer than reading a text and writing its answer. An endpoint that takes a
body of JSON, the request, and what a coroutine makes of the request needs none of that; its path
in the documentation, its checks and its errors stay what the framework would make of them.
"""

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.params import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.types import ASGIApp, ExceptionHandler, Receive, Scope, Send

from service.answers import call_path
from service.transport import StrictRequest, StrictRoute, body_kind
from service.validation import validated

Handler = Callable[[StrictRequest], Coroutine[Any, Any, Response]]


class Shortcut:
    """Takes the calls of ``routes`` whose endpoints ask for little, and passes on all others.

    ``handlers`` make answers of what the calls raise, by the kind of error.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: Iterable[object],
        handlers: Mapping[type[Exception], ExceptionHandler],
    ) -> None:
        self._app = app
        self._handlers = handlers
        self._calls = {
            route.path: (route, handler)
            for route in routes
            if isinstance(route, StrictRoute) and "{" not in route.path
            # Where several routes share a path, that for JSON is the one that counts here.
            if route.kind == StrictRoute.kind and (handler := direct_handler(route))
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        call = self._calls.get(call_path(scope)) if is_post else None
        # All other kinds of bodies are another route's, or refused by the framework's way.
        if call is None or body_kind(Headers(scope=scope)) != StrictRoute.kind:
            await self._app(scope, receive, send)
            return
        route, handler = call
        request = StrictRequest(scope, receive)
        scope["route"] = route
        try:
            response = await route.answer(request, handler)
        except tuple(self._handlers) as error:
            response = await self._answer_to(error, request)
        await response(scope, receive, send)

    async def _answer_to(self, error: Exception, request: Request) -> Response:
        handler = next(h for kind, h in self._handlers.items() if isinstance(error, kind))
        return await handler(request, error)  # type: ignore[arg-type,misc]


def direct_handler(route: APIRoute) -> Handler | None:
    """What calls the endpoint of a route itself; None where it takes more than this can give."""
    is_plain = inspect.iscoroutinefunction(route.endpoint) and not route.dependencies
    if not is_plain or route.methods != {"POST"}:
        return None
    schemas: dict[str, type[BaseModel]] = {}
    makers: dict[str, Callable[[Request], Awaitable[Any]]] = {}
    for name, wanted in _parameters(route.endpoint).items():
        if wanted is Request:
            makers[name] = _itself
        elif isinstance(wanted, type) and issubclass(wanted, BaseModel):
            schemas[name] = wanted
        elif maker := _maker(wanted):
            makers[name] = maker
        else:
            return None
    if len(schemas) != 1:
        return None
    ((body, schema),) = schemas.items()

    async def handle(request: StrictRequest) -> Response:
        values = {name: await make(request) for name, make in makers.items()}
        values[body] = validated(schema, await request.json())
        return await route.endpoint(**values)

    return handle


async def _itself(request: Request) -> Request:
    return request


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function wants by each of its parameters; of those with a default, only that."""
    hints = typing.get_type_hints(function, include_extras=True)
    return {
        name: hints.get(name) if parameter.default is parameter.empty else parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
    }


def _maker(wanted: Any) -> Callable[[Request], Awaitable[Any]] | None:
    """The coroutine function that makes a dependency of a request and nothing else."""
    if typing.get_origin(wanted) is not Annotated:
        return None
    makers = [told.dependency for told in wanted.__metadata__ if isinstance(told, Depends)]
    fitting = [
        make
        for make in makers
        if inspect.iscoroutinefunction(make) and list(_parameters(make).values()) == [Request]
    ]
    return fitting[0] if fitting else None

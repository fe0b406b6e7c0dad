"""Who comes in: a key where one is needed, no new work on the way out, so many requests at once."""

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.answers import answer_triwire_error, call_path
from service.errors import TriwireError
from service.keys import Keys
from service.lifecycle import Lifecycle
from service.rehearsal import IS_REHEARSAL


class Gate:
    """Refuses what may not come in, before anything of its body is read."""

    def __init__(self, app: ASGIApp, *, keys: Keys, lifecycle: Lifecycle) -> None:
        self._app = app
        self._keys = keys
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or refuses it."""
        if scope["type"] != "http" or scope["state"].get(IS_REHEARSAL):
            await self._app(scope, receive, send)
            return
        is_work = scope["method"] == "POST"
        try:
            self._keys.require(call_path(scope), Headers(scope=scope))
            if is_work:
                self._lifecycle.enter()
        except TriwireError as error:
            await answer_triwire_error(Request(scope), error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if is_work:
                self._lifecycle.exit()

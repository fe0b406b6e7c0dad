"""The process: what signals do to it."""

import asyncio
import logging
import os
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from service.joined_writes import joining_writes
from service.keys import KeyFileError
from service.lifecycle import Phase

logger = logging.getLogger(__name__)

BACKLOG = 2048


class Server(uvicorn.Server):
    """Serves an application, leaves in order on SIGTERM and loads anew on SIGHUP.

    Leaving is: not ready, but serving, for the time that a balancer needs to notice; then nothing
    new, until all that has begun is answered; then the end, with status 0. SIGINT, which comes from
    a person, leaves the grace time out. A second signal ends it at once.
    """

    def __init__(self, app: FastAPI) -> None:
        self._settings = app.state.context.settings
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                app,
                host=self._settings.host,
                port=self._settings.port,
                root_path=self._settings.root_path,
                http=joining_writes(AutoHTTPProtocol),
                workers=1,
                access_log=False,
                # They tell the address of a client and its scheme, and nothing here asks for these.
                proxy_headers=False,
                log_config=None,
                backlog=BACKLOG,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)
        await super().startup(sockets)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until a signal ends it; where that would not wait, no thread is waited for."""
        super().run(sockets)
        if self.force_exit:
            logging.shutdown()
            # A call that is under way must not meet an interpreter that is being taken apart.
            os._exit(0 if self.started else 1)

    def reload(self) -> None:
        """Loads what has changed on disk, keys included."""
        logger.info("loading what has changed")
        self._app.state.loader.start()
        try:
            self._app.state.keys.read()
        except KeyFileError as error:
            logger.error("the keys stay as they are: %s", error)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to leave; a second signal ends the process without waiting for anything."""
        if self._loop is None or self._leaving is not None:
            self.should_exit = self.force_exit = True
            return
        grace_s = 0.0 if sig == signal.SIGINT else self._settings.shutdown_grace_s
        self._loop.call_soon_threadsafe(self._start_leaving, grace_s)

    def _start_leaving(self, grace_s: float) -> None:
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(grace_s), name="leaving")

    async def _leave(self, grace_s: float) -> None:
        lifecycle = self._app.state.lifecycle
        lifecycle.phase = Phase.LEAVING
        logger.info("not ready any more; serving for another %g s", grace_s)
        await asyncio.sleep(grace_s)
        lifecycle.phase = Phase.DRAINING
        logger.info("taking no more; %d requests are under way", lifecycle.num_requests)
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await lifecycle.wait_until_idle()
        except TimeoutError:
            logger.error("%d requests were not answered in time", lifecycle.num_requests)
            self.force_exit = True
        self.should_exit = True

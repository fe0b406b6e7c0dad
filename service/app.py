"""The application: its parts, wired together, and what happens at the start and the end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp

from models import allocator
from models.cores import Cores, give_way
from service import answers, device, tracing
from service.batcher import Batcher
from service.compilation import CompilationCounter
from service.envelope import Envelope
from service.gate import Gate
from service.keys import Keys
from service.lifecycle import Lifecycle
from service.loader import Loader
from service.logs import log_exchange
from service.metrics import Metrics, States
from service.programs import Grid
from service.registry import Registry
from service.rehearsal import rehearse
from service.routes import (
    catalogue,
    health,
    hugging_face,
    inference,
    latents,
    open_inference,
    page,
)
from service.settings import Settings
from service.shortcut import Shortcut
from service.tasks import PROGRAMS
from service.tasks.context import Context
from service.tensor_bodies import LENGTH_HEADER

logger = logging.getLogger(__name__)


class Application(FastAPI):
    """FastAPI with what every request passes in ``front`` of it, the outermost first.

    What FastAPI adds by itself comes behind that, where calls that take the shortcut do not pass.
    """

    front: Sequence[Middleware] = ()

    def build_middleware_stack(self) -> ASGIApp:
        """What a request passes on its way to the routes."""
        faults = super().build_middleware_stack()
        # It would answer faults, as does what is in front of it already.
        assert isinstance(faults, ServerErrorMiddleware)
        stack = faults.app
        for middleware in reversed(self.front):
            stack = middleware.cls(stack, *middleware.args, **middleware.kwargs)
        return stack


def create_app(
    settings: Settings, *, tracer_provider: Any = None, kept: Path | None = None
) -> FastAPI:
    """The application; models are loaded once it runs, and until then it is not ready.

    Spans go to ``tracer_provider``, an OpenTelemetry one, if there is one. ``kept`` is where
    executables lie that an earlier start has compiled, and where this one leaves its own.

    Raises:
        DeviceError: if there is no such device.
        KeyFileError: if the file of API keys cannot be used.
    """
    metrics = Metrics(CollectorRegistry())
    num_calls = device.num_calls(device.find_device(settings.device), settings.calls_at_once)
    logger.info("calls at once: %d", num_calls)
    registry = Registry(
        PROGRAMS,
        selection=settings.models,
        device=settings.device,
        dtype=settings.dtype,
        grids={name: Grid(**grid.model_dump()) for name, grid in settings.grids.items()},
        kept=kept,
        num_calls=num_calls,
    )
    cores = Cores(num_calls)
    batcher = Batcher(
        lambda slot, rows: cores.run(slot.run, rows),
        lambda slot, num_rows: slot.fit(num_rows),
        max_rows=settings.max_queue_rows,
        num_workers=num_calls,
        observe=metrics.count_batch,
        prepare=give_way,
    )
    lifecycle = Lifecycle(
        registry,
        batcher,
        max_requests=settings.max_concurrent_requests,
        stuck_after_s=settings.request_timeout_s,
    )
    compilations = CompilationCounter()
    metrics.registry.register(States(registry, batcher, lifecycle, compilations))
    keys = Keys(
        [key.get_secret_value() for key in settings.api_keys],
        settings.api_keys_file,
        settings.protected,
    )

    async def warm_up() -> None:
        # At a start there is nothing to be rid of but what loading has left.
        await asyncio.to_thread(allocator.settle, anew=lifecycle.is_warm)
        await rehearse(app, sorted(registry.models))
        lifecycle.is_warm = compilations.is_ready = True

    loader = Loader(registry, settings.checkpoints, warm_up)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with compilations.listening():
            await batcher.start()
            loader.start()
            yield
            await loader.stop()
            await batcher.stop()

    app = Application(
        title="Triwire",
        version="0.1.0",
        description="Small transformers over HTTP, with the evidence for their answers.",
        lifespan=lifespan,
        redirect_slashes=False,
        # Spans and metrics are ours (``tracing``, ``metrics``).
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # For the documentation, which asks for a key; the gate is what checks it.
        dependencies=[Security(HTTPBearer(auto_error=False))] if keys.are_there else None,
    )
    app.state.context = Context(registry, batcher, settings)
    app.state.lifecycle = lifecycle
    app.state.loader = loader
    app.state.compilations = compilations
    app.state.metrics = metrics
    app.state.keys = keys
    observers = [log_exchange, metrics.count_exchange]
    if tracer_provider:
        observers.append(tracing.span_writer(tracer_provider))
    # Whatever is answered inside, it is put into the envelope.
    app.front = [
        Middleware(
            Envelope, lifecycle=lifecycle, observers=observers, in_progress=metrics.in_progress
        ),
        *([_cross_origin(settings)] if settings.cors_origins else []),
        Middleware(ServerErrorMiddleware, handler=answers.on_fault),
        Middleware(Gate, keys=keys, lifecycle=lifecycle),
        Middleware(
            Shortcut,
            routes=[*inference.router.routes, *latents.router.routes],
            handlers=answers.HANDLERS,
        ),
    ]
    for router in (
        inference.router,
        latents.npy_router,
        latents.router,
        catalogue.router,
        hugging_face.router,
        health.router,
        open_inference.router,
        open_inference.infer_router,
        open_inference.index_router,
    ):
        app.include_router(router)
    app.include_router(page.router)
    app.mount("/static", page.files)
    for kind, handler in answers.HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


def _cross_origin(settings: Settings) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-Request-Id", LENGTH_HEADER],
        expose_headers=["X-Request-Id", "Server-Timing", "Retry-After", LENGTH_HEADER],
    )

"""The application: its parts, wired together, and what happens at the start and the end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware

from models import allocator
from models.cores import Cores
from service import answers, device, tracing
from service.batcher import Batcher
from service.compilation import CompilationCounter
from service.envelope import Envelope
from service.errors import TriwireError
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
from service.tasks import PROGRAMS
from service.tasks.context import Context
from service.tensor_bodies import LENGTH_HEADER

logger = logging.getLogger(__name__)


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
        await asyncio.to_thread(allocator.give_back)
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

    app = FastAPI(
        title="Triwire",
        version="0.1.0",
        description="Small transformers over HTTP, with the evidence for their answers.",
        lifespan=lifespan,
        redirect_slashes=False,
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
    # What is added last is outermost: whatever is answered inside, it is put into the envelope.
    app.add_middleware(Gate, keys=keys, lifecycle=lifecycle)
    app.add_middleware(ServerErrorMiddleware, handler=answers.on_fault)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id", LENGTH_HEADER],
            expose_headers=["X-Request-Id", "Server-Timing", "Retry-After", LENGTH_HEADER],
        )
    app.add_middleware(
        Envelope,
        lifecycle=lifecycle,
        observers=observers,
        under_way=metrics.in_progress.track_inprogress,
    )
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
    app.add_exception_handler(TriwireError, answers.on_triwire_error)
    app.add_exception_handler(RequestValidationError, answers.on_invalid_request)
    app.add_exception_handler(HTTPException, answers.on_http_exception)
    return app

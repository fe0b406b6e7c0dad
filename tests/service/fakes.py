"""Stand-ins for the slow parts of the service."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from models.checkpoint import Bundle, ModelCard
from models.encoder_decoder import EncoderDecoder
from service.app import create_app
from service.engine import Engine
from service.programs import Program, Row
from service.registry import LoadedModel
from service.settings import Settings
from service.tasks import PROGRAMS
from tests.service import tiny

PATIENCE_S = 240.0
START_S = 600.0


class Recorder:
    """A ``run`` for the batcher that echoes key and row, and remembers every batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[Any]]] = []

    def __call__(self, key: Any, rows: Sequence[Any]) -> list[Any]:
        self.batches.append((key, list(rows)))
        return [(key, row) for row in rows]

    @property
    def rows(self) -> list[Any]:
        return [row for _, rows in self.batches for row in rows]


class Gate(Recorder):
    """A recorder whose batches stay inside, in their worker thread, until the gate is opened."""

    def __init__(self, run: Callable[[Any, Sequence[Any]], Any] | None = None) -> None:
        super().__init__()
        self.run = run or super().__call__
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, key: Any, rows: Sequence[Any]) -> Any:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return self.run(key, rows)


class FakeEngine(Engine):
    """A model whose results come from a plain function; nothing is compiled."""

    def __init__(
        self, bundle: Bundle, programs: Sequence[Program], answer: Callable[[Sequence[Row]], Any]
    ) -> None:
        super().__init__(bundle, programs)
        self.answer = answer

    def run(self, name: str, rows: Sequence[Row]) -> list[Any]:
        return self.answer(rows)


def reverse(rows: Sequence[Row]) -> list[Any]:
    """What a perfect reversal model gives."""
    return [
        {
            "tokens": row["source"][::-1],
            "lengths": np.array(row["max_new_tokens"]),
            "log_probs": np.zeros(len(row["source"]), np.float32),
            "has_ended": np.array(False),
        }
        for row in rows
    ]


def blocked_by(gate: Gate) -> Callable[[Sequence[Row]], Any]:
    """Such a model whose rows wait at the gate."""
    return lambda rows: gate("reversal", rows)


def fake_model(card: ModelCard, answer: Callable[[Sequence[Row]], Any] = reverse) -> LoadedModel:
    """A loaded model of that card, made of ``answer``."""
    engine = FakeEngine(Bundle(card, tiny.model(card)), PROGRAMS[card.wiring](card), answer)
    return LoadedModel(card, engine)


def fake_app(
    answer: Callable[[Sequence[Row]], Any] = reverse,
    *,
    tracer_provider: Any = None,
    **settings: Any,
) -> FastAPI:
    """The application with one model, "reversal", that is there at once and made of ``answer``."""
    app = create_app(Settings(**{"calls_at_once": 1, **settings}), tracer_provider=tracer_provider)
    registry = app.state.context.registry
    model = fake_model(next(card for card in tiny.cards() if card.name == "reversal"), answer)

    def load(root: Path, name: str | None = None) -> None:
        registry._models["reversal"] = model
        registry.is_loaded = True

    async def rehearse() -> None:
        app.state.lifecycle.is_warm = True

    registry.load = load
    app.state.loader.rehearse = rehearse
    return app


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[TestClient]:
    """A client of ``app`` once it is ready; faults inside come as answers."""
    with TestClient(app, raise_server_exceptions=False) as client:
        deadline = time.monotonic() + PATIENCE_S
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield client


@dataclass(frozen=True)
class Service:
    """An application that serves one encoder-decoder, a client of it, and the model itself."""

    app: FastAPI
    client: httpx2.Client
    model: EncoderDecoder

    @property
    def engine(self) -> Engine:
        """That of the model."""
        return self.app.state.context.registry.choose(None, "encoder-decoder").engine

    def ask(self, **body: Any) -> Any:
        """The answer to a decode request that must succeed."""
        answer = self.client.post("/v1/decode", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, **body: Any) -> list[Any]:
        """What the events of a decode request hold, which must end as it should."""
        answer = self.client.post("/v1/decode", json=body | {"stream": True})
        assert answer.status_code == 200, answer.text
        *events, last = read_events(answer.text)
        assert last == "[DONE]"
        return [orjson.loads(event) for event in events]


@dataclass(frozen=True)
class Listening:
    """An application behind a real socket, and a client of it."""

    app: FastAPI
    client: httpx2.Client

    def engine(self, name: str) -> Engine:
        """That of a model."""
        return self.app.state.context.registry.find(name).engine

    def ask(self, path: str, **body: Any) -> Any:
        """The answer to a request that must succeed."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, path: str, **body: Any) -> list[Any]:
        """What the events of a stream hold, which must end as it should."""
        answer = self.client.post(path, json=body | {"stream": True})
        assert answer.status_code == 200, answer.text
        *events, last = read_events(answer.text)
        assert last == "[DONE]"
        return [orjson.loads(event) for event in events]


def read_events(text: str) -> list[str]:
    """What the server-sent events of a whole stream hold, each of them one line."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


@contextlib.contextmanager
def listening(app: FastAPI) -> Iterator[httpx2.Client]:
    """A client of ``app`` over a real socket, once it is ready."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_S) as client:
            registry = app.state.context.registry
            wait_until(lambda: registry.failures or client.get("/readyz").status_code == 200)
            assert registry.failures == {}
            yield client
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


def wait_until(condition: Callable[[], Any]) -> None:
    """Waits for what happens elsewhere, as long as a start may take."""
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def exchange(
    app: Any,
    *chunks: bytes,
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
    leaves: bool = False,
) -> list[dict[str, Any]]:
    """What ``app`` sends to a client that posts a body in ``chunks``, then waits or leaves."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages[-1]["more_body"] = False
    if leaves:
        messages.append({"type": "http.disconnect"})
    return await talk(app, messages, headers)


async def talk(
    app: Any, messages: list[dict[str, Any]], headers: Sequence[tuple[bytes, bytes]]
) -> list[dict[str, Any]]:
    """What ``app`` sends to a client that sends ``messages``; those that it read are taken out."""
    sent = []

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/decode",
        "query_string": b"",
        "headers": list(headers),
    }
    await app(scope, receive, send)
    return sent

"""Contenders that run: started, found to answer, and stopped while it is not their turn."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

from benchmarks.peers.processes import ROOT
from benchmarks.serving import texts, trees
from benchmarks.serving.contenders import Contender

PATIENCE_S = 600.0
SETTLE_S = 0.1
LOGS = Path("runs") / "benchmarks" / "logs"
COMPILED = Path("runs") / "benchmarks" / "compiled"


class StartError(RuntimeError):
    """A contender did not come to answer."""


class Server:
    """A contender that runs, has answered once, and waits until it is its turn.

    ``start_s`` is how long it took to answer; what it had compiled before it found again.

    Raises:
        StartError: if it did not; its log says more.
    """

    def __init__(self, contender: Contender, bundle: Path, answer: str) -> None:
        self.contender = contender
        self.port = _free_port()
        self._log = LOGS / f"{contender.name.replace(' ', '-')}.log"
        LOGS.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TRIWIRE_MODEL": str(bundle),
            "FLOOR_ANSWER": answer,
            # As our own service does, peers find what they have compiled before.
            "JAX_COMPILATION_CACHE_DIR": str(COMPILED.resolve()),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            **contender.environment,
        }
        command = contender.start_command(self.port, bundle)
        began = time.monotonic()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT
            )
        try:
            self._wait()
        except BaseException:
            trees.end(self.process)
            raise
        self.start_s = time.monotonic() - began
        trees.pause(self.process.pid)

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx2.TransportError):
                if self._answers():
                    return
            time.sleep(0.02)
        raise StartError(
            f"{self.contender.name}: expected an answer within {PATIENCE_S:g} s, got status "
            f"{self.process.poll()}; see {self._log}"
        )

    def _answers(self) -> bool:
        address, contender = f"http://127.0.0.1:{self.port}", self.contender
        if contender.ready and httpx2.get(address + contender.ready).status_code != 200:
            return False
        body = contender.request(texts.draw()[0])
        answer = httpx2.post(address + contender.path, json=body, timeout=PATIENCE_S)
        return answer.status_code == 200

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """It runs until the block ends."""
        trees.resume(self.process.pid)
        time.sleep(SETTLE_S)
        try:
            yield
        finally:
            trees.pause(self.process.pid)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

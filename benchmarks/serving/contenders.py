"""Who is measured: the same model and function behind every server, each as fast as it goes.

Peers are given the packed model, batch sizes from 1 to 32 and access logs that are off; what else
makes one fast stands with it, and is what its documentation and source offer for that.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import LOCKS, python_of
from benchmarks.report import NARROW, narrowed
from benchmarks.serving.answers import TOLERANCE, TOLERANCE_NARROW

CANDIDATES = ("candidates",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A server: how it starts, what it is sent, and where the candidates are in its answers.

    ``command`` begins with what its interpreter, that of ``peer`` or ours, is given. ``{port}``,
    ``{checkpoints}`` and ``{model}`` are filled in there, ``{text}`` in ``body``. It is ready when
    it answers a request and ``ready``, where it has such a path, says so.
    """

    name: str
    command: Sequence[str]
    path: str = "/predict"
    ready: str = ""
    body: Mapping[str, Any] = field(default_factory=lambda: {"text": "{text}"})
    found: Sequence[str | int] = CANDIDATES
    tolerance: float = TOLERANCE
    peer: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start_command(self, port: int, bundle: Path) -> list[str]:
        """The whole command that serves a bundle."""
        python = python_of(self.peer) if self.peer else Path(sys.executable)
        checkpoints, name, version = bundle.parent.parent, bundle.parent.name, bundle.name
        told = {"port": port, "checkpoints": checkpoints, "model": f"{name}/{version}"}
        return [str(python), *(part.format(**told) for part in self.command)]

    def request(self, text: str) -> dict[str, Any]:
        """The body of the request for a text."""
        return {name: _filled(value, text) for name, value in self.body.items()}


def locked_version(peer: str) -> str:
    """The version of a peer that is measured."""
    lock = (LOCKS / f"{peer}.lock").read_text(encoding="utf-8")
    found = re.search(rf"^{peer}(?:\[.*?\])?==(\S+)", lock, re.MULTILINE)
    assert found, f"{peer}.lock: expected a line that begins with {peer}=="
    return found[1]


def _filled(value: Any, text: str) -> Any:
    if isinstance(value, list):
        return [_filled(item, text) for item in value]
    return value.replace("{text}", text) if isinstance(value, str) else value


# A call runs in the thread that makes it, so that several threads, or processes, take a core each;
# otherwise XLA has threads of its own share every call.
INLINE = {"PJRT_NPROC": "1", "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0"}
# The latter two have Ray wait for its own processes, where a machine has much else to do.
RAY = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_raylet_start_wait_time_s": "120",
}
UVICORN = ("-m", "uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--no-access-log")
SERVICE = (
    *("-m", "service", "--port", "{port}", "--checkpoints", "{checkpoints}"),
    *("--models", "{model}", "--shutdown-grace-s", "0"),
)

FLOOR = Contender(
    name="floor",
    command=(
        *UVICORN,
        "--lifespan",
        "off",
        "--log-level",
        "warning",
        "benchmarks.serving.floor:app",
    ),
    found=(),
)
OURS = Contender(
    name="triwire",
    command=SERVICE,
    path="/v1/fill-mask",
    ready="/readyz",
    body={"inputs": "{text}"},
    found=("results", 0, "masks", 0, "candidates"),
)


# The same with no two calls of the model at a time, as the peers with one worker have it.
OURS_ALONE = replace(OURS, name="triwire 1 call", command=(*SERVICE, "--calls-at-once", "1"))


def plain_fastapi(workers: int) -> Contender:
    """FastAPI by itself, in our environment, which has the same versions of everything."""
    return Contender(
        name=f"fastapi x{workers}",
        command=(
            *UVICORN,
            *("--workers", str(workers), "--log-level", "warning"),
            "benchmarks.peers.fastapi_app:app",
        ),
        environment=INLINE,
    )


def litserve(workers: int) -> Contender:
    """LitServe, with its ZeroMQ queue and as many processes for HTTP as for the model."""
    return Contender(
        name=f"litserve x{workers}",
        peer="litserve",
        command=("-m", "benchmarks.peers.litserve_app", "{port}", str(workers)),
        environment=INLINE if workers > 1 else {},
    )


def bentoml(workers: int) -> Contender:
    """BentoML, with adaptive batching."""
    return Contender(
        name=f"bentoml x{workers}",
        peer="bentoml",
        command=(
            *("-m", "bentoml", "serve", "benchmarks.peers.bentoml_app:Service"),
            *("--host", "127.0.0.1", "--port", "{port}"),
        ),
        body={"texts": ["{text}"]},
        found=(0,),
        environment={"WORKERS": str(workers), **(INLINE if workers > 1 else {})},
    )


def ray_serve(workers: int) -> Contender:
    """Ray Serve, by its own switch optimised for throughput."""
    return Contender(
        name=f"ray x{workers}",
        peer="ray",
        command=("-m", "benchmarks.peers.ray_app", "{port}", str(workers)),
        environment={**RAY, **(INLINE if workers > 1 else {})},
    )


# With matrices multiplied in bfloat16, ours and the fastest of the peers.
OURS_NARROW = replace(
    OURS,
    name=narrowed(OURS.name),
    command=(*SERVICE, "--dtype", NARROW),
    tolerance=TOLERANCE_NARROW,
)


def plain_fastapi_narrow(workers: int) -> Contender:
    """The same in bfloat16, as benchmarks/serving/function.py reads it."""
    wide = plain_fastapi(workers)
    return replace(
        wide,
        name=narrowed(wide.name),
        environment={**wide.environment, "TRIWIRE_DTYPE": NARROW},
        tolerance=TOLERANCE_NARROW,
    )


PEERS = tuple(make(n) for make in (plain_fastapi, litserve, bentoml, ray_serve) for n in (1, 2))
NARROW_ONES = (OURS_NARROW, *map(plain_fastapi_narrow, (1, 2)))
CONTENDERS = {
    contender.name: contender for contender in (FLOOR, OURS, OURS_ALONE, *PEERS, *NARROW_ONES)
}

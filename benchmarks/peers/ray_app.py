"""Ray Serve: so many replicas, each of which gathers requests for at most ``TIMEOUT_S``.

python benchmarks/peers/ray_app.py PORT WORKERS
"""

import asyncio
import os
import signal
import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from benchmarks.serving.function import FillMask

TIMEOUT_S = 0.001
MAX_UNDER_WAY = 512
# As little as Ray takes for objects that processes share; these requests make none.
OBJECT_STORE_BYTES = 80 * 2**20

# What of this environment the replicas need.
PREFIXES = ("PYTHONPATH", "TRIWIRE_", "PJRT_", "JAX_")


@serve.deployment(max_ongoing_requests=MAX_UNDER_WAY, ray_actor_options={"num_cpus": 0})
class FillMaskDeployment:
    """One text with one mask a request."""

    def __init__(self) -> None:
        self.fill_mask = FillMask()

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Serves one request."""
        body = await request.json()
        return {"candidates": await self.predict(body["text"])}

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=TIMEOUT_S)
    async def predict(self, texts: list[str]) -> list[Any]:
        """The candidates of every text, worked out beside the event loop."""
        return await asyncio.to_thread(self.fill_mask, texts)


if __name__ == "__main__":
    port, workers = map(int, sys.argv[1:])
    given = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        runtime_env={"env_vars": given},
        _node_ip_address="127.0.0.1",
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": port, "access_log": False},
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    serve.run(FillMaskDeployment.options(num_replicas=workers).bind(), route_prefix="/predict")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()

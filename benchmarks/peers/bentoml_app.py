"""BentoML: its adaptive batching in front of so many processes.

Run as ``bentoml serve benchmarks.peers.bentoml_app:Service``; ``WORKERS`` is how many processes.
``MAX_LATENCY_MS`` is when BentoML gives requests up; the time that it lets pass for more of them it
finds out by itself.
"""

import os
from typing import Any

import bentoml

from benchmarks.serving.function import FillMask

MAX_LATENCY_MS = 10_000


@bentoml.service(
    workers=int(os.environ.get("WORKERS", "1")),
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
    traffic={"timeout": 60},
)
class Service:
    """One text with one mask a request."""

    def __init__(self) -> None:
        self.fill_mask = FillMask()

    @bentoml.api(route="/predict", batchable=True, max_batch_size=32, max_latency_ms=MAX_LATENCY_MS)
    def predict(self, texts: list[str]) -> list[Any]:
        """The candidates of every text."""
        return self.fill_mask(texts)

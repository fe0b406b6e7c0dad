"""LitServe: requests are gathered for at most ``TIMEOUT_S`` and served by so many processes.

python benchmarks/peers/litserve_app.py PORT WORKERS
"""

import sys
from typing import Any

import litserve

from benchmarks.serving.function import FillMask

TIMEOUT_S = 0.001


class FillMaskAPI(litserve.LitAPI):
    """One text with one mask a request."""

    def setup(self, device: Any) -> None:
        """Compiles the model, in the process that will run it."""
        self.fill_mask = FillMask()

    def decode_request(self, request: dict[str, str], **_: Any) -> str:
        """The text."""
        return request["text"]

    def batch(self, inputs: list[str]) -> list[str]:
        """Texts, as they are."""
        return inputs

    def predict(self, x: list[str], **_: Any) -> list[Any]:
        """The candidates of every text."""
        return self.fill_mask(x)

    def unbatch(self, output: list[Any]) -> list[Any]:
        """The candidates of every text, as they are."""
        return output

    def encode_response(self, output: Any, **_: Any) -> dict[str, Any]:
        """The answer."""
        return {"candidates": output}


if __name__ == "__main__":
    port, workers = map(int, sys.argv[1:])
    server = litserve.LitServer(
        FillMaskAPI(max_batch_size=32, batch_timeout=TIMEOUT_S),
        accelerator="cpu",
        workers_per_device=workers,
        fast_queue=True,
    )
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=workers,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )

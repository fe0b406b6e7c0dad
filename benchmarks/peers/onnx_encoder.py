"""The encoder of ``benchmarks.forward`` in ONNX Runtime, from what PyTorch exported.

Runs in the environment ``onnxruntime``.
"""

import numpy as np
import onnxruntime

from benchmarks.peers.worker import answer_calls, num_cores, time_calls

NUM_CANDIDATES = 5


class Contestant:
    """A session for each size of batch, which it knows when it optimises."""

    def __init__(self, path: str, batch_sizes: list[int]) -> None:
        self.sessions = {batch: _session(path, batch) for batch in batch_sizes}

    def logits(self, tokens: list[list[int]]) -> list[list[list[float]]]:
        """Logits at every position of every row."""
        return self._whole(np.array(tokens)).tolist()

    def candidates(self, tokens: list[list[int]], positions: list[int]) -> list[list[int]]:
        """The ids of the likeliest symbols at one mask of every row, the likeliest first."""
        return [[token for token, _ in row] for row in self._fill(np.array(tokens), positions)]

    def version(self) -> str:
        """The library's."""
        return onnxruntime.__version__

    def _whole(self, tokens: np.ndarray) -> np.ndarray:
        """Logits at every position."""
        session = self.sessions[len(tokens)]
        return session.run(None, {session.get_inputs()[0].name: tokens})[0]

    def _fill(self, tokens: np.ndarray, positions: list[int]) -> list[list[tuple[int, float]]]:
        """The likeliest symbols at one mask of every row, from all logits, as pipelines do."""
        logits = self._whole(tokens)[np.arange(len(tokens)), positions]
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probs = exponentials / exponentials.sum(axis=-1, keepdims=True)
        ids = np.argsort(-probs, axis=-1)[:, :NUM_CANDIDATES]
        scores = np.take_along_axis(probs, ids, axis=-1)
        return [
            list(zip(*row, strict=True)) for row in zip(ids.tolist(), scores.tolist(), strict=True)
        ]

    def turn(
        self, work: str, tokens: list[list[int]], positions: list[int], num_calls: int
    ) -> list[float]:
        """Milliseconds of each of some calls."""
        rows = np.array(tokens)
        if work == "whole":
            return time_calls(lambda: self._whole(rows), num_calls)
        return time_calls(lambda: self._fill(rows, positions), num_calls)


def _session(path: str, batch: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_cores()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_free_dimension_override_by_name("batch", batch)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    answer_calls(Contestant)

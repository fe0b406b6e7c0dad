"""Our encoder, for ``benchmarks.forward``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import weights
from benchmarks.ours import lanes
from benchmarks.peers.worker import answer_calls, time_calls
from models.checkpoint import load_model
from models.packed import PackedStack, pack, symbol_logits
from service.engine import Engine
from service.programs import Program
from service.tasks import fill_mask

WHOLE, FILL_MASK = "whole", fill_mask.PROGRAM
NUM_CANDIDATES = 5


class Encoder:
    """The engine with what is served, and a program that gives all logits."""

    def __init__(self, path: str, length: int, dtype: str) -> None:
        self.bundle = load_model(Path(path))
        served = next(p for p in fill_mask.programs(self.bundle.card) if p.name == FILL_MASK)
        grid = lanes.at_lengths(served, [length])
        programs = (
            replace(served, grid=grid),
            Program(name=WHOLE, function=_whole, ragged=served.ragged, grid=grid, pack=pack),
        )
        engine = Engine(self.bundle, programs, dtype)
        engine.warm_up(lambda shape: None)
        self.lanes = lanes.Lanes(engine)

    def export(self, path: str) -> None:
        """Writes the weights for the others."""
        weights.save(path, weights.of_encoder(self.bundle.model))

    def logits(self, tokens: list[list[int]]) -> list[list[list[float]]]:
        """Logits at every position of every row."""
        return np.stack(self._whole(np.array(tokens, np.int32))).tolist()

    def candidates(self, tokens: list[list[int]], positions: list[int]) -> list[list[int]]:
        """The ids of the likeliest symbols at one mask of every row, the likeliest first."""
        found = self._fill(np.array(tokens, np.int32), positions)
        return [[token for token, _ in row] for row in found]

    def turn(
        self, work: str, tokens: list[list[int]], positions: list[int], num_calls: int
    ) -> list[float]:
        """Milliseconds of each of some calls, from numpy to numpy or to candidates."""
        rows = np.array(tokens, np.int32)
        if work == WHOLE:
            return time_calls(lambda: self._whole(rows), num_calls)
        return time_calls(lambda: self._fill(rows, positions), num_calls)

    def _whole(self, tokens: np.ndarray) -> list[np.ndarray]:
        outputs = self.lanes.run(WHOLE, [{"tokens": row} for row in tokens])
        return [output["logits"] for output in outputs]

    def _fill(self, tokens: np.ndarray, positions: list[int]) -> list[list[tuple[int, float]]]:
        """The likeliest symbols at one mask of every row, with their probabilities."""
        rows = [
            {"tokens": row, "positions": [position]}
            for row, position in zip(tokens, positions, strict=True)
        ]
        return [_best(output["probs"][0]) for output in self.lanes.run(FILL_MASK, rows)]


def _whole(packed: PackedStack, *arrays: Any) -> dict[str, Any]:
    return {"logits": symbol_logits(packed, *arrays)}


def _best(probs: np.ndarray) -> list[tuple[int, float]]:
    best = np.argsort(-probs, kind="stable")[:NUM_CANDIDATES]
    return [(int(token), float(probs[token])) for token in best]


if __name__ == "__main__":
    lanes.set_up()
    answer_calls(Encoder)

"""Our encoder-decoder, for ``benchmarks.decode``."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.ours import lanes
from benchmarks.peers.worker import answer_calls, time_calls
from models.checkpoint import load_model
from service.engine import Engine
from service.tasks import decode

PROGRAM = "decode"


class Decoder:
    """The engine with the greedy program that is served, at the lengths that are."""

    def __init__(self, path: str, lengths: list[int]) -> None:
        bundle = load_model(Path(path))
        served = next(p for p in decode.programs(bundle.card) if p.name == PROGRAM)
        engine = Engine(bundle, [replace(served, grid=lanes.at_lengths(served, lengths))])
        engine.warm_up(lambda shape: None)
        self.lanes = lanes.Lanes(engine)

    def decoded(self, sources: list[list[int]]) -> list[list[int]]:
        """What every source becomes."""
        outcomes = self._decode(np.array(sources, np.int32))
        return [outcome["tokens"][: outcome["lengths"]].tolist() for outcome in outcomes]

    def turn(self, sources: list[list[int]], num_calls: int) -> list[float]:
        """Milliseconds of each of some calls, from numpy to numpy."""
        rows = np.array(sources, np.int32)
        return time_calls(lambda: self._decode(rows), num_calls)

    def _decode(self, sources: np.ndarray) -> list[dict[str, np.ndarray]]:
        limit = sources.shape[1]
        rows = [{"source": source, "max_new_tokens": limit} for source in sources]
        return self.lanes.run(PROGRAM, rows)


if __name__ == "__main__":
    lanes.set_up()
    answer_calls(Decoder)

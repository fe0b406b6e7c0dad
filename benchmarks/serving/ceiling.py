"""The model's own rate: what the service runs for such requests, without HTTP, queue or schema.

Token ids in, the likeliest five out, by the engine of the service in as many threads as it uses, at
every batch size that it compiles.
"""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.worker import answer_calls
from benchmarks.serving.answers import NUM_CANDIDATES
from benchmarks.serving.reference import read
from benchmarks.serving.texts import NUM_CHARACTERS
from models import allocator, cores
from models.checkpoint import load_model
from service import device
from service.engine import Engine
from service.programs import Row
from service.tasks import fill_mask


class Ceiling:
    """An engine with the program of fill-mask at the length of the texts."""

    def __init__(self, bundle: str, texts: list[str]) -> None:
        allocator.keep_memory(1 + cores.num_cores())
        cores.run_calls_side_by_side()
        chosen = device.reserve("cpu")
        loaded = load_model(Path(bundle))
        program, *_ = fill_mask.programs(loaded.card)
        length = program.bucket(NUM_CHARACTERS)
        self._batch_sizes = program.batch_sizes(length)
        self._num_threads = device.num_calls(chosen, wanted=0)
        program = replace(program, grid=tuple((size, length) for size in self._batch_sizes))
        self._engine = Engine(loaded, [program])
        self._engine.warm_up(lambda _: None)
        self._rows: list[Row] = []
        for text in texts:
            tokens, position = read(loaded.card.vocabulary, text)
            self._rows.append({"tokens": tokens, "positions": np.array([position], np.int32)})

    def shapes(self) -> dict[str, Any]:
        """The batch sizes, and the most threads that the service computes in."""
        return {"batch_sizes": self._batch_sizes, "num_threads": self._num_threads}

    def rate(self, batch_size: int, num_threads: int, seconds: float) -> float:
        """Rows a second."""
        until = time.perf_counter() + seconds
        counts = [0] * num_threads

        def work(index: int) -> None:
            while time.perf_counter() < until:
                self._run(self._rows[:batch_size])
                counts[index] += batch_size

        began = time.perf_counter()
        threads = [threading.Thread(target=work, args=(index,)) for index in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began)

    def pauses(self, pause_s: float, seconds: float) -> float:
        """The median milliseconds of a call that comes after a pause."""
        until = time.perf_counter() + seconds
        taken = []
        while time.perf_counter() < until:
            time.sleep(pause_s)
            row = self._rows[len(taken) % len(self._rows)]
            before = time.perf_counter()
            self._run([row])
            taken.append(1e3 * (time.perf_counter() - before))
        return float(np.median(taken))

    def _run(self, rows: list[Row]) -> list[np.ndarray]:
        outcomes = self._engine.run(fill_mask.PROGRAM, rows)
        best = []
        for outcome in outcomes:
            assert isinstance(outcome, dict)
            best.append(np.argsort(-outcome["probs"][0], kind="stable")[:NUM_CANDIDATES])
        return best


if __name__ == "__main__":
    answer_calls(Ceiling)

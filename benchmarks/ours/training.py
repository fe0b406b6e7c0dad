"""Our training step for ``benchmarks.train``, in one process for every core.

The first process answers calls, and tells the others by a line on their standard input how many
steps to take with it, as ``--cpu-processes`` has them train.
"""

import itertools
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
from flax import nnx

from benchmarks.peers.worker import answer_calls, time_calls
from models import allocator
from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from training.corpus import Corpus
from training.devices import join_processes
from training.masked_lm import MaskedLMRecipe, vocabulary
from training.masking import asked_positions
from training.side_by_side import free_port
from training.step import Batch, Optimization, Trainer

MASK_RATE = 0.15


class Side:
    """What one process does; the weights are those of ``seed``, which the peers got as arrays."""

    def __init__(self, batches: str, optimization: dict[str, float], seed: int) -> None:
        config = TransformerConfig.book(len(vocabulary.symbols))
        self.batches = itertools.cycle(read_batches(batches))
        settings = Optimization(num_steps=1, batch_size=64, **optimization)
        # Batches come from the file, so the text is never read.
        nothing = Corpus(np.zeros(1, np.int32), "", "")
        recipe = MaskedLMRecipe(corpus=nothing, config=config, optimization=settings)
        model = MaskedLanguageModel(config, rngs=nnx.Rngs(seed))
        self.trainer = Trainer(model, recipe.loss, settings)

    def step(self) -> float:
        """Takes a step; gives its loss, in nats."""
        return float(self.trainer.run([next(self.batches)])[0])


def read_batches(path: str) -> list[Batch]:
    """The batches of ``benchmarks.train`` as the masked recipe has them."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file}
    return [
        {
            "inputs": inputs,
            "targets": targets,
            "weights": masked.astype(np.float32),
            "positions": asked_positions(masked, MASK_RATE),
        }
        for inputs, targets, masked in zip(
            arrays["inputs"], arrays["targets"], arrays["masked"], strict=True
        )
    ]


class Contestant:
    """The first process, with the others at hand."""

    def __init__(self, *, weights: str, num_processes: int, **setting: Any) -> None:
        del weights
        coordinator = f"127.0.0.1:{free_port()}" if num_processes > 1 else None
        self.others = [
            _start({**setting, "several": (coordinator, num_processes, index)})
            for index in range(1, num_processes)
        ]
        if coordinator:
            join_processes(coordinator, num_processes, 0)
        self.side = Side(**setting)

    def losses(self, num_steps: int) -> list[float]:
        """The losses of the next steps."""
        self._tell(num_steps)
        return [self.side.step() for _ in range(num_steps)]

    def turn(self, num_calls: int) -> list[float]:
        """Milliseconds of each of the next steps, after one that is not counted."""
        self._tell(num_calls + 1)
        return time_calls(self.side.step, num_calls)

    def _tell(self, num_steps: int) -> None:
        for other in self.others:
            assert other.stdin
            other.stdin.write(f"{num_steps}\n")
            other.stdin.flush()


def _start(setting: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.ours.training", json.dumps(setting)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)


def _follow(several: tuple[str, int, int], **setting: Any) -> None:
    """Takes as many steps as each line of standard input says."""
    join_processes(*several)
    side = Side(**setting)
    for line in sys.stdin:
        for _ in range(int(line)):
            side.step()


if __name__ == "__main__":
    allocator.keep_memory()
    # One thread for each process, before JAX counts cores.
    os.environ["NPROC"] = "1"
    if len(sys.argv) > 1:
        _follow(**json.loads(sys.argv[1]))
    else:
        answer_calls(Contestant)
    # The end of one would wait for the others at a barrier, though nothing is left to be said.
    os._exit(0)

"""Our training step for ``benchmarks.train``, in as many threads as a run of its own has."""

import itertools

import numpy as np
from flax import nnx

from benchmarks.peers.worker import answer_calls, time_calls
from models import allocator
from models.blocks import TransformerConfig
from models.cores import num_cores, run_calls_side_by_side
from models.encoder import MaskedLanguageModel
from training.corpus import Corpus
from training.devices import pool_size_for, threads_for
from training.masked_lm import MaskedLMRecipe, vocabulary
from training.masking import asked_positions
from training.step import Batch, Optimization, Trainer

MASK_RATE = 0.15


class Contestant:
    """The trainer; the weights are those of ``seed``, which the peers got as arrays."""

    def __init__(
        self,
        *,
        weights: str,
        batches: str,
        optimization: dict[str, float],
        dtype: str,
        seed: int,
    ) -> None:
        del weights
        # Before JAX starts a device.
        num_threads = threads_for(64, num_cores())
        run_calls_side_by_side(pool_size_for(dtype, num_threads))
        config = TransformerConfig.book(len(vocabulary.symbols))
        self.batches = itertools.cycle(read_batches(batches))
        settings = Optimization(num_steps=1, batch_size=64, **optimization)
        # Batches come from the file, so the text is never read.
        nothing = Corpus(np.zeros(1, np.int32), "", "")
        recipe = MaskedLMRecipe(corpus=nothing, config=config, optimization=settings)
        self.hoard = allocator.Hoard()
        model = MaskedLanguageModel(config, rngs=nnx.Rngs(seed))
        self.trainer = Trainer(
            model,
            recipe.loss,
            settings,
            dtype=dtype,
            num_threads=num_threads,
        )

    def step(self) -> float:
        """Takes a step; gives its loss, in nats."""
        (loss,) = self.trainer.run([next(self.batches)])
        self.hoard.check()
        return float(loss)

    def losses(self, num_steps: int) -> list[float]:
        """The losses of the next steps."""
        return [self.step() for _ in range(num_steps)]

    def turn(self, num_calls: int) -> list[float]:
        """Milliseconds of each of the next steps, after one that is not counted."""
        return time_calls(self.step, num_calls)


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


if __name__ == "__main__":
    allocator.keep_memory(1 + num_cores())
    answer_calls(Contestant)

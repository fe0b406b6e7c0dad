"""Our Perceiver, and its blocks over the whole input instead, for ``benchmarks.latents``."""

from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
from flax import nnx

from benchmarks import weights
from benchmarks.ours import lanes
from benchmarks.peers.worker import answer_calls, memory_of, time_calls
from models.checkpoint import Bundle, ModelCard
from models.perceiver import PerceiverAutoencoder, PerceiverConfig
from models.vocabulary import MASK, Vocabulary
from service.engine import Engine
from service.tasks import latents
from training.cost_curve import SelfAttentionEncoder
from training.step import jitted


def random_bundle(max_input_len: int) -> Bundle:
    """The shipped Perceiver's sizes, for inputs as long as is asked, with random parameters."""
    vocabulary = Vocabulary.english_letters(MASK)
    config = replace(PerceiverConfig.book(len(vocabulary.symbols)), max_input_len=max_input_len)
    card = ModelCard(
        name="random",
        version=1,
        created=0,
        wiring=latents.WIRING,
        config=asdict(config),
        vocabulary=vocabulary,
        limits={"min_len": 1, "max_len": max_input_len},
    )
    return Bundle(card, PerceiverAutoencoder(config, rngs=nnx.Rngs(0)))


class Reader:
    """One row of vectors at a time, through the programs that are served or the blocks alone.

    The blocks alone compute in float32.
    """

    def __init__(
        self, *, is_perceiver: bool, dtype: str, lengths: list[int], max_input_len: int
    ) -> None:
        if is_perceiver:
            lanes.set_up()
        self.bundle = random_bundle(max_input_len)
        self.width = self.bundle.card.config["embed_dim"]
        if is_perceiver:
            self._run = self._served(lengths, dtype)
        else:
            config = PerceiverConfig(**self.bundle.card.config)
            encoder = SelfAttentionEncoder(config, rngs=nnx.Rngs(0))
            everything = jitted(encoder, SelfAttentionEncoder.__call__)
            self._run = lambda vectors: np.asarray(everything(vectors[None]))

    def _served(self, lengths: list[int], dtype: str) -> Callable[[np.ndarray], np.ndarray]:
        programs = {program.name: program for program in latents.programs(self.bundle.card)}
        grid = tuple((1, length) for length in lengths)
        whole = replace(programs[latents.OF_VECTORS], grid=grid)
        ragged = whole.ragged.name
        parts = [p for p in programs.values() if p.is_part and p.ragged.name in (ragged, "read")]
        engine = Engine(self.bundle, [whole, *parts], dtype)
        engine.warm_up(lambda shape: None)
        served = lanes.Lanes(engine)
        return lambda vectors: served.run_one(whole.name, {ragged: vectors})["latents"]

    def export(self, path: str) -> None:
        """Writes the weights for the others."""
        weights.save(path, weights.of_perceiver(self.bundle.model))

    def output(self, vectors: list[list[float]]) -> list[list[float]]:
        """What a row becomes."""
        return self._run(np.array(vectors, np.float32)).tolist()

    def memory(self, length: int) -> float:
        """By how much a call makes this process grow, in MiB, once it is compiled."""
        vectors = self._draw(length)
        self._run(vectors)
        return memory_of(lambda: self._run(vectors))

    def turn(self, length: int, num_calls: int, num_warm: int) -> list[float]:
        """Milliseconds of each of some calls, from numpy to numpy."""
        vectors = self._draw(length)
        return time_calls(lambda: self._run(vectors), num_calls, num_warm)

    def _draw(self, length: int) -> np.ndarray:
        return np.random.default_rng(length).normal(size=(length, self.width)).astype(np.float32)


if __name__ == "__main__":
    answer_calls(Reader)

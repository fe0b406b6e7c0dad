"""The book's windows over the corpus, which the masked and the causal recipe share.

Every window of 64 characters in order: the first 100,000 train, the next 3,000 validate.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from training.corpus import Corpus, windows

WINDOW = 64
INTERIOR = slice(16, 48)
EVALUATION_BATCH = 500
NUM_TRAIN = 100_000
NUM_VALIDATION = 3_000
# All characters that a validation window touches.
BOOK_HELD_OUT = (NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION + WINDOW - 1)


@dataclass(frozen=True, slots=True)
class TextWindows:
    """Training and validation windows of a corpus, drawn by seed."""

    corpus: Corpus
    seed: int

    def train(self, step: int, batch_size: int) -> np.ndarray:
        """The windows of a step (B, 64): each epoch is a fresh shuffle of all of them."""
        first = step * batch_size
        indices = range(first, first + batch_size)
        starts = [_epoch(self.seed, index // NUM_TRAIN)[index % NUM_TRAIN] for index in indices]
        return windows(self.corpus.tokens, np.array(starts), WINDOW)

    def validation(self) -> np.ndarray:
        """All validation windows (3000, 64)."""
        starts = np.arange(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION)
        return windows(self.corpus.tokens, starts, WINDOW)


@functools.lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(NUM_TRAIN)


def without(corpus: Corpus, *stretches: tuple[int, int]) -> Corpus:
    """The corpus with ``stretches`` (first, one past the last) held out."""
    return replace(corpus, held_out=stretches)


def draw_masks(
    generator: np.random.Generator, tokens: np.ndarray, rate: float, mask_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """``tokens`` with each position masked with probability ``rate``, and where (True = masked)."""
    masked = generator.random(tokens.shape) < rate
    return np.where(masked, np.int32(mask_id), tokens), masked


def position_figures(by_position: np.ndarray) -> dict[str, Any]:
    """What the book reports of the validation loss at each position of a window, in nats."""
    return {
        "validation_loss_at": {
            "position_0": float(by_position[0]),
            f"position_{WINDOW - 1}": float(by_position[-1]),
            "interior_mean": float(by_position[INTERIOR].mean()),
        },
        "validation_loss_by_position": by_position.tolist(),
    }

"""What the model says of a text by itself: no batch, no padding, no packing."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from benchmarks.serving.texts import MASK, Wanted
from models.checkpoint import load_model
from models.vocabulary import Vocabulary


def probabilities(bundle_directory: Path, texts: Sequence[str]) -> list[Wanted]:
    """The probability of every symbol at the mask of every text."""
    bundle = load_model(bundle_directory)
    graph, state = nnx.split(bundle.model)

    @jax.jit
    def predict(state: nnx.State, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return nnx.merge(graph, state).predict(tokens, lengths)[0]

    vocabulary = bundle.card.vocabulary
    found = []
    for text in texts:
        tokens, position = read(vocabulary, text)
        lengths = np.array([tokens.size], np.int32)
        probs = np.asarray(predict(state, tokens[None], lengths))[0, position]
        found.append(dict(zip(vocabulary.symbols, probs.tolist(), strict=True)))
    return found


def read(vocabulary: Vocabulary, text: str) -> tuple[np.ndarray, int]:
    """The token ids of a text with one mask, and where that is."""
    left, right = (vocabulary.encode(vocabulary.normalized(part)) for part in text.split(MASK))
    mask = np.array([vocabulary.special_id(MASK)], np.int32)
    return np.concatenate([left, mask, right]), left.size

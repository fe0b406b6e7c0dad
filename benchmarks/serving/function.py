"""The function that every peer serves: texts in, the likeliest five symbols of each mask out.

It is what our own service runs for such a request, less its checks: the packed encoder at the
asked positions alone, compiled ahead of time for some batch sizes at the one length that comes,
and numpy around it. Peers call it with as many texts as they have gathered. ``TRIWIRE_MODEL`` is
the directory of the bundle, ``TRIWIRE_DTYPE`` what matrices are multiplied in, by default float32.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.serving.reference import read
from benchmarks.serving.texts import MASK, NUM_CHARACTERS
from models import allocator
from models.checkpoint import load_model
from models.cores import num_cores
from models.packed import logits_at, pack
from models.packed_blocks import narrowed

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
NUM_CANDIDATES = 5


class FillMask:
    """A masked language model that is compiled for texts of one length with one mask each."""

    def __init__(self, batch_sizes: Sequence[int] = BATCH_SIZES) -> None:
        allocator.keep_memory(1 + num_cores())
        bundle = load_model(Path(os.environ["TRIWIRE_MODEL"]))
        self._vocabulary = bundle.card.vocabulary
        dtype = os.environ.get("TRIWIRE_DTYPE", "float32")
        self._leaves, self._tree = jax.tree.flatten(narrowed(pack(bundle.model), dtype))
        self._compiled = {size: self._compile(size) for size in sorted(batch_sizes)}
        for size in self._compiled:
            self([f"{MASK}{'a' * (NUM_CHARACTERS - 1)}"] * size)

    def __call__(self, texts: Sequence[str]) -> list[list[dict[str, Any]]]:
        """The candidates of every text, the likeliest first."""
        largest = max(self._compiled)
        parts = [texts[i : i + largest] for i in range(0, len(texts), largest)]
        return [candidates for part in parts for candidates in self._call(part)]

    def _call(self, texts: Sequence[str]) -> list[list[dict[str, Any]]]:
        size = min(size for size in self._compiled if size >= len(texts))
        tokens = np.zeros((size, NUM_CHARACTERS), np.int32)
        positions = np.zeros((size, 1), np.int32)
        for index, text in enumerate(texts):
            tokens[index], positions[index, 0] = read(self._vocabulary, text)
        lengths = np.full(size, NUM_CHARACTERS, np.int32)
        probs = np.asarray(self._compiled[size](self._leaves, tokens, lengths, positions))
        return [self._candidates(row[0]) for row in probs[: len(texts)]]

    def _candidates(self, probs: np.ndarray) -> list[dict[str, Any]]:
        symbols = self._vocabulary.symbols
        best = np.argsort(-probs, kind="stable")[:NUM_CANDIDATES]
        return [{"token": symbols[i], "token_id": int(i), "score": float(probs[i])} for i in best]

    def _compile(self, size: int) -> jax.stages.Compiled:
        def probs(leaves: list[jax.Array], *arrays: jax.Array) -> jax.Array:
            return jax.nn.softmax(logits_at(self._tree.unflatten(leaves), *arrays), axis=-1)

        whole = jax.ShapeDtypeStruct((size, NUM_CHARACTERS), jnp.int32)
        lengths = jax.ShapeDtypeStruct((size,), jnp.int32)
        positions = jax.ShapeDtypeStruct((size, 1), jnp.int32)
        return jax.jit(probs).lower(self._leaves, whole, lengths, positions).compile()

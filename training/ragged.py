"""Windows of any length: which length a step has, where its rows begin and how long each is.

A step draws one bucket, the longest length of its rows, and holds as many characters whatever the
bucket; every row has a length of its own in it, and what is past that is padding. No window
touches a held-out stretch. All draws follow from the generator that is given.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from training.corpus import Corpus, CorpusError, windows

Weighted = Sequence[tuple[Corpus, float]]


def draw_bucket(
    generator: np.random.Generator, buckets: Sequence[int], weights: Sequence[float | int]
) -> int:
    """One of ``buckets``, each as often as its weight says."""
    shares = np.array(weights, dtype=np.float64)
    return int(generator.choice(buckets, p=shares / shares.sum()))


def draw_lengths(
    generator: np.random.Generator, buckets: Sequence[int], bucket: int, num_rows: int
) -> np.ndarray:
    """A length for each row: longer than the bucket before, from 1 in the shortest bucket."""
    shortest = 1 + max((size for size in buckets if size < bucket), default=0)
    return generator.integers(shortest, bucket + 1, num_rows, dtype=np.int32)


def draw_windows(
    generator: np.random.Generator, corpora: Weighted, size: int, num_rows: int
) -> np.ndarray:
    """Windows (num_rows, size) of several corpora; each row is of one, as often as its weight says.

    Raises:
        CorpusError: if a corpus has no such window.
    """
    if len(corpora) == 1:
        ((corpus, _),) = corpora
        return windows(corpus.tokens, draw_starts(generator, corpus, size, num_rows), size)
    weights = np.array([weight for _, weight in corpora], dtype=np.float64)
    chosen = generator.choice(len(corpora), num_rows, p=weights / weights.sum())
    tokens = np.empty((num_rows, size), np.int32)
    for index, (corpus, _) in enumerate(corpora):
        rows = np.flatnonzero(chosen == index)
        starts = draw_starts(generator, corpus, size, rows.size)
        tokens[rows] = windows(corpus.tokens, starts, size)
    return tokens


def draw_starts(
    generator: np.random.Generator, corpus: Corpus, size: int, num_rows: int
) -> np.ndarray:
    """Random starts of windows that touch no held-out stretch, all equally likely.

    Raises:
        CorpusError: if there are none.
    """
    firsts, counts = [], []
    for first, end in stretches(corpus):
        firsts.append(first)
        counts.append(max(end - first - size + 1, 0))
    if not sum(counts):
        raise CorpusError(
            f"{corpus.name}: expected at least {size} characters in one piece to train on, got "
            f"{max((end - first for first, end in stretches(corpus)), default=0)}"
        )
    before = np.concatenate([[0], np.cumsum(counts)])
    drawn = generator.integers(0, before[-1], num_rows)
    piece = np.searchsorted(before, drawn, side="right") - 1
    return np.array(firsts)[piece] + drawn - before[piece]


def stretches(corpus: Corpus) -> list[tuple[int, int]]:
    """What is left of a corpus for training, as (first, one past the last), in order."""
    edges = [0]
    for first, end in sorted(corpus.held_out):
        edges += [first, end]
    edges.append(corpus.tokens.size)
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(first, end) for first, end in pairs if first < end]


def real_positions(lengths: np.ndarray, size: int) -> np.ndarray:
    """True where a row (num_rows, size) has a character, False at its padding."""
    return np.arange(size)[None] < lengths[:, None]


def padding_share(batch: Mapping[str, Any]) -> float:
    """The share of the positions of a batch that are padding; 0 where no row has a length.

    Where sources and targets have lengths of their own, both count.
    """
    lengths = [batch[name] for name in ("lengths", "target_lengths") if name in batch]
    if not lengths:
        return 0.0
    num_real = sum(float(each.sum()) for each in lengths)
    return 1.0 - num_real / (len(lengths) * batch["targets"].size)

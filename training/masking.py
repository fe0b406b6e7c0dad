"""Which characters are hidden: every row in a style of its own.

A model that is served meets one mask in a long text, many masks, a word of them, and texts that
end at the mask; training on single masks at one rate prepares it for the first alone. Spans after
SpanBERT, Joshi et al. (2019), arXiv:1907.10529, section 3.1, with lengths drawn uniformly.
"""

import math
from collections.abc import Sequence

import numpy as np

from training.ragged import real_positions

SINGLE, DENSE, SPANS, EDGES = STYLES = range(4)
# The share of single positions that each style hides; spans come on their own.
SINGLE_RATES = {SINGLE: 0.15, DENSE: 0.30, SPANS: 0.0, EDGES: 0.15}
# How often another span begins at a position, beside the one that every such row has.
SPAN_RATE = 0.02
MIN_SPAN, MAX_SPAN = 2, 8
# How many more masks than usual a row may have before a batch asks everywhere, in standard
# deviations: a row of 64 has more once in 400,000 rows. Widths are in eights, for whole vectors.
MARGIN_DEVIATIONS = 5
MULTIPLE = 8


def asked_positions(masked: np.ndarray, rate: float) -> np.ndarray:
    """Positions (num_rows, K): of a row of ``masked`` (num_rows, size) all that are, then others.

    K follows from the size and ``rate``, the highest at which single positions are masked, so that
    all steps of a size have one shape. Where a row has more masked than that, K is the size.
    """
    size = masked.shape[1]
    width = num_asked(size, rate)
    if masked.sum(axis=1).max() > width:
        width = size
    return np.argsort(~masked, axis=1, kind="stable")[:, :width].astype(np.int32)


def num_asked(size: int, rate: float) -> int:
    """How many of ``size`` positions have room for all that are masked at ``rate``, as a rule."""
    deviation = math.sqrt(size * rate * (1 - rate))
    wanted = size * rate + MARGIN_DEVIATIONS * deviation
    return min(size, math.ceil(wanted / MULTIPLE) * MULTIPLE)


def draw_mixed_masks(
    generator: np.random.Generator, lengths: np.ndarray, size: int, weights: Sequence[float]
) -> np.ndarray:
    """Where the characters of rows (num_rows, size) are hidden: True = masked, never at padding.

    ``weights`` say how often a row has each style: single positions at 15 %, at 30 %, spans of 2
    to 8 adjacent ones, or one position or span at the very beginning or end of the row or both,
    which sees one side only, beside single ones at 15 %. At least one position of a row is masked.
    """
    shares = np.array(weights, dtype=np.float64)
    styles = generator.choice(len(STYLES), lengths.size, p=shares / shares.sum())
    rates = np.array([SINGLE_RATES[style] for style in STYLES])[styles]
    masked = generator.random((lengths.size, size), np.float32) < rates[:, None]
    masked |= _spans(generator, lengths, size) & (styles == SPANS)[:, None]
    masked |= _edges(generator, lengths, size) & (styles == EDGES)[:, None]
    masked &= real_positions(lengths, size)
    empty = np.flatnonzero(~masked.any(axis=1))
    masked[empty, _anywhere(generator, lengths)[empty]] = True
    return masked


def _anywhere(generator: np.random.Generator, lengths: np.ndarray) -> np.ndarray:
    return generator.integers(0, lengths)


def _spans(generator: np.random.Generator, lengths: np.ndarray, size: int) -> np.ndarray:
    begins = generator.random((lengths.size, size), np.float32) < SPAN_RATE
    begins[np.arange(lengths.size), _anywhere(generator, lengths)] = True
    widths = generator.integers(MIN_SPAN, MAX_SPAN + 1, (lengths.size, size), dtype=np.int8)
    masked = np.zeros_like(begins)
    for offset in range(min(MAX_SPAN, size)):
        masked[:, offset:] |= (begins & (widths > offset))[:, : size - offset]
    return masked


def _edges(generator: np.random.Generator, lengths: np.ndarray, size: int) -> np.ndarray:
    """A position or a span at the left, the right or both ends, half of them single positions."""
    spans = generator.integers(MIN_SPAN, MAX_SPAN + 1, lengths.size)
    widths = np.where(generator.random(lengths.size) < 0.5, 1, spans)
    widths = np.minimum(widths, np.maximum(lengths - 1, 1))[:, None]
    sides = generator.integers(0, 3, lengths.size)[:, None]
    positions = np.arange(size)[None]
    left = (positions < widths) & (sides != 1)
    right = (positions >= lengths[:, None] - widths) & (sides != 0)
    return left | right

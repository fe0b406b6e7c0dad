"""Log-probabilities of tokens, in the OpenAI schema."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionLogprobs:
    """Log-probabilities (natural logarithms) of tokens, and where each begins in the text.

    ``top_logprobs`` are those of the likeliest tokens in each place, and last that of the token
    itself where it is none of them.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def tell_logprobs(
    symbols: Sequence[str],
    tokens: Sequence[int],
    rows: Sequence[np.ndarray],
    *,
    num_top: int,
    offset: int = 0,
) -> CompletionLogprobs:
    """What ``rows`` over all ``symbols`` say of ``tokens``, the first of which is at ``offset``."""
    names = [symbols[token] for token in tokens]
    ends = itertools.accumulate(map(len, names), initial=offset)
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[float(row[token]) for row, token in zip(rows, tokens, strict=True)],
        top_logprobs=[
            _top(symbols, token, row, num_top) for token, row in zip(tokens, rows, strict=True)
        ],
        text_offset=list(ends)[:-1],
    )


def _top(symbols: Sequence[str], token: int, row: np.ndarray, num_top: int) -> dict[str, float]:
    best = np.argsort(-row, kind="stable")[:num_top]
    return {symbols[index]: float(row[index]) for index in (*best, token)}

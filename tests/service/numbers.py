"""Answers that are the same up to the last bits of their numbers."""

from typing import Any

import numpy as np


def split(value: Any, numbers: list[float]) -> Any:
    """``value`` without its fractions, which are put into ``numbers``, and what varies anyway."""
    if isinstance(value, dict):
        kept = {name: inner for name, inner in value.items() if name not in ("id", "created")}
        return {name: split(inner, numbers) for name, inner in kept.items()}
    if isinstance(value, list):
        return [split(inner, numbers) for inner in value]
    if isinstance(value, float):
        return numbers.append(value)
    return value


def require_same(one: Any, other: Any, atol: float) -> None:
    """Checks that two answers are the same, but for fractions that differ by up to ``atol``."""
    numbers: list[float] = []
    others: list[float] = []
    assert split(one, numbers) == split(other, others)
    np.testing.assert_allclose(numbers, others, atol=atol)

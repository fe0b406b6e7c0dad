"""The arguments of a call, side by side in as few arrays as they have types.

A device takes arrays one by one, and Python's lock is given up and waited for at each. Where others
hold the lock most of the time, that takes longer than all else that a call does on the host.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Shaped

# A shape and the type of its numbers.
Form = tuple[tuple[int, ...], np.dtype]
# Numpy gives Python's lock up to set aside more than a kilobyte of zeros. Up to so many bytes,
# waiting for the lock would take longer than writing zeros while it is held.
SMALL = 2**16


class Arguments(NamedTuple):
    """Arrays of the host for one call: ``joined`` has one for each type, with the ``views`` in it.

    What is written into the views is in the joined arrays.
    """

    joined: list[np.ndarray]
    views: list[np.ndarray]

    @classmethod
    def of_zeros(cls, forms: Sequence[Form]) -> "Arguments":
        """Arrays of these forms that hold zeros."""
        sizes: dict[np.dtype, int] = {}
        for shape, dtype in forms:
            sizes[dtype] = sizes.get(dtype, 0) + math.prod(shape)
        joined = {dtype: _zeros(size, dtype) for dtype, size in sizes.items()}
        views = [
            joined[dtype][part].reshape(shape)
            for part, (shape, dtype) in zip(_parts(forms), forms, strict=True)
        ]
        return cls([*joined.values()], views)

    @property
    def forms(self) -> list[Form]:
        """The forms of the views."""
        return [(view.shape, view.dtype) for view in self.views]


def apart(
    joined: Sequence[Shaped[Array, " _"]], forms: Sequence[Form]
) -> list[Shaped[Array, "..."]]:
    """The arrays of these forms that ``Arguments.joined`` holds, inside a compiled function."""
    by_dtype = {array.dtype: array for array in joined}
    return [
        by_dtype[dtype][part].reshape(shape)
        for part, (shape, dtype) in zip(_parts(forms), forms, strict=True)
    ]


def _parts(forms: Sequence[Form]) -> Iterator[slice]:
    """Where each is among those of its own type."""
    ends: dict[np.dtype, int] = {}
    for shape, dtype in forms:
        start = ends.get(dtype, 0)
        ends[dtype] = end = start + math.prod(shape)
        yield slice(start, end)


def _zeros(size: int, dtype: np.dtype) -> np.ndarray:
    if size * dtype.itemsize > SMALL:
        return np.zeros(size, dtype)
    return np.frombuffer(bytearray(size * dtype.itemsize), dtype)

"""The arguments of a call, side by side in as few arrays as they have types.

A device takes arrays one by one, and Python's lock is given up and waited for at each. Where the
event loop holds the lock most of the time, that was most of what threads that compute waited for.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Shaped

# The shape of an array and the type of its numbers.
ArraySpec = tuple[tuple[int, ...], np.dtype]
# For more than a kilobyte of zeros numpy gives Python's lock up. Up to so many bytes, waiting for
# it again takes longer than writing the zeros.
FEW_BYTES = 2**16
# XLA reads arrays of the host where they are if they begin at a multiple of so many bytes. Others
# it copies, large ones in a thread of its own, in which the call then stays.
ALIGNMENT = 64


class Arguments(NamedTuple):
    """Arrays of the host for one call: ``joined`` has one for each type, with the ``views`` in it.

    What is written into the views is in the joined arrays.
    """

    joined: list[np.ndarray]
    views: list[np.ndarray]

    @classmethod
    def of_zeros(cls, specs: Sequence[ArraySpec]) -> "Arguments":
        """Arrays of these shapes and types that hold zeros."""
        sizes: dict[np.dtype, int] = {}
        for shape, dtype in specs:
            sizes[dtype] = sizes.get(dtype, 0) + math.prod(shape)
        joined = {dtype: _zeros(size, dtype) for dtype, size in sizes.items()}
        views = [
            joined[dtype][part].reshape(shape)
            for part, (shape, dtype) in zip(_parts(specs), specs, strict=True)
        ]
        return cls([*joined.values()], views)

    @property
    def specs(self) -> list[ArraySpec]:
        """The shapes and types of the views."""
        return [(view.shape, view.dtype) for view in self.views]


def take_apart(
    joined: Sequence[Shaped[Array, " _"]], specs: Sequence[ArraySpec]
) -> list[Shaped[Array, "..."]]:
    """The arrays that lie in ``Arguments.joined``, inside a compiled function."""
    by_dtype = {array.dtype: array for array in joined}
    return [
        by_dtype[dtype][part].reshape(shape)
        for part, (shape, dtype) in zip(_parts(specs), specs, strict=True)
    ]


def _parts(specs: Sequence[ArraySpec]) -> Iterator[slice]:
    """Where each is among those of its own type."""
    ends: dict[np.dtype, int] = {}
    for shape, dtype in specs:
        start = ends.get(dtype, 0)
        ends[dtype] = end = start + math.prod(shape)
        yield slice(start, end)


def _zeros(size: int, dtype: np.dtype) -> np.ndarray:
    if size * dtype.itemsize > FEW_BYTES:
        num_bytes = size * dtype.itemsize
        aligned = np.zeros(num_bytes + ALIGNMENT, np.uint8)
        start = -aligned.ctypes.data % ALIGNMENT
        return aligned[start : start + num_bytes].view(dtype)
    return np.frombuffer(bytearray(size * dtype.itemsize), dtype)

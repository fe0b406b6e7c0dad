"""Functions of a model over rows, and the (batch, length) shapes that they are compiled for.

Rows of different lengths are padded in numpy to one of those shapes.
"""

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flax import nnx

from service.arguments import Arguments, ArraySpec
from service.errors import TooLarge

Row = dict[str, Any]
Result = dict[str, np.ndarray]
# Rows that are to be computed, each with the name of its program.
Asked = list[tuple[str, Row]]
# What runs in place of a row: it asks for rows, is sent their results, and ends with its own.
Steps = Generator[Asked, list[Result], Result]
# The steps of a row that so many threads are free for.
Share = Callable[[Row, int], Steps]
# Larger batches of models of this size do not fit into the caches of a core, and cost more a row.
MAX_BATCH_TOKENS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Ragged:
    """The argument of a program that differs in length from row to row."""

    name: str
    dtype: type[np.generic]
    trailing: tuple[int, ...] = ()


def _as_it_is(model: nnx.Module) -> nnx.Module:
    return model


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A function of a model over rows.

    ``function(model, ragged, lengths, *scalars, *arrays)`` gives named arrays, one row each. The
    model is what ``pack`` made of the bundle's when it was loaded; by default that is the same.
    ``grid`` holds the (batch, length) shapes; for every length there is a batch of 1. ``scalars``
    are the further values of a row with the value that padding rows take. ``arrays`` are whatever
    else a row has at a compiled length, with what padding rows hold; a row may have less of an
    array than that, from its start. A new model is tried out with full rows of zeros and of what
    padding rows hold; ``trial`` overrides that where there would be nothing to do. What is asked
    for seldom may stay on disk until it is: ``is_on_demand``. Where threads can ``share`` a row,
    that says how, and what they run for it ``is_part``.
    """

    name: str
    function: Callable[..., dict[str, Any]]
    ragged: Ragged
    scalars: tuple[tuple[str, np.generic], ...] = ()
    grid: tuple[tuple[int, int], ...]
    trial: Mapping[str, Any] = field(default_factory=dict)
    arrays: Callable[[int], Mapping[str, np.ndarray]] = lambda _: {}
    is_on_demand: bool = False
    share: Share | None = None
    is_part: bool = False
    pack: Callable[[Any], Any] = _as_it_is

    def bucket(self, length: int) -> int:
        """The shortest compiled length that holds ``length``.

        Raises:
            TooLarge: if none does.
        """
        lengths = list(_batches_by_length(self.grid))
        for size in lengths:
            if size >= length:
                return size
        raise TooLarge(f"expected at most {lengths[-1]} tokens, got {length}")

    def batch_sizes(self, bucket: int) -> tuple[int, ...]:
        """The compiled batch sizes at that length, ascending."""
        return _batches_by_length(self.grid)[bucket]

    def shape(self, num_rows: int, longest: int) -> tuple[int, int]:
        """The smallest compiled (batch, length) that holds so many rows of at most that length.

        Raises:
            TooLarge: if none holds that length.
        """
        length = self.bucket(longest)
        return min(size for size in self.batch_sizes(length) if size >= num_rows), length


# Every row of every request asks for them.
@functools.cache
def _batches_by_length(grid: tuple[tuple[int, int], ...]) -> dict[int, tuple[int, ...]]:
    """The batch sizes at every length, both ascending."""
    found: dict[int, list[int]] = {}
    for batch, length in sorted(grid, key=lambda shape: shape[::-1]):
        found.setdefault(length, []).append(batch)
    return {length: tuple(batches) for length, batches in found.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Shapes to compile instead of a program's own; what is None stays as the program has it.

    ``lengths`` are those below the longest, which is always there; for every length there is a
    batch of 1, and those of ``batch_sizes`` that hold no more than ``max_tokens`` tokens.
    """

    batch_sizes: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None
    max_tokens: int = 4096

    def apply(self, program: Program) -> Program:
        """``program`` over these shapes."""
        own_sizes, own_lengths = map(set, zip(*program.grid, strict=True))
        longest = max(own_lengths)
        lengths = own_lengths if self.lengths is None else {*self.lengths, longest}
        sizes = own_sizes if self.batch_sizes is None else {1, *self.batch_sizes}
        shapes = tuple(
            (batch, length)
            for length in sorted(lengths)
            for batch in sorted(sizes)
            if length <= longest and (batch == 1 or batch * length <= self.max_tokens)
        )
        return replace(program, grid=shapes)


def make_grid(
    max_len: int,
    *,
    batch_sizes: Sequence[int],
    shortest: int,
    factor: int,
    max_tokens: int = MAX_BATCH_TOKENS,
) -> tuple[tuple[int, int], ...]:
    """The (batch, length) shapes of a program.

    Lengths grow from ``shortest`` by ``factor`` and end with ``max_len``; every length has a batch
    of 1 and those of ``batch_sizes``, none with more rows than hold ``max_tokens`` tokens.
    """
    lengths = []
    length = shortest
    while length < max_len:
        lengths.append(length)
        length *= factor
    lengths.append(max_len)
    return tuple(
        (batch, length)
        for length in lengths
        for batch in sorted({1, *(min(size, max(1, max_tokens // length)) for size in batch_sizes)})
    )


def longest_of(grid: Sequence[tuple[int, int]], max_batch: int) -> tuple[tuple[int, int], ...]:
    """The shapes of the greatest length with up to so many rows, for what is seldom asked for.

    In models of this size a pass over a whole window takes little longer than the call itself.
    """
    longest = max(length for _, length in grid)
    return tuple(shape for shape in grid if shape[1] == longest and shape[0] <= max_batch)


def trial_rows(program: Program, batch: int, length: int) -> list[Row]:
    """As many rows of that length as the batch holds."""
    ragged = program.ragged
    values = np.zeros((length, *ragged.trailing), dtype=ragged.dtype)
    row = {ragged.name: values, **dict(program.scalars), **program.arrays(length), **program.trial}
    return [row] * batch


def collate(program: Program, rows: Sequence[Row], batch: int, length: int) -> Arguments:
    """The arguments of a call: rows padded with zeros to ``length``, then rows of padding.

    A row of padding has length 1, so that no average is ever over nothing.
    """
    arguments = Arguments.of_zeros(_specs(program, batch, length))
    padded, lengths, *columns = arguments.views
    lengths[len(rows) :] = 1
    for index, row in enumerate(rows):
        values = row[program.ragged.name]
        padded[index, : len(values)] = values
        lengths[index] = len(values)
    scalars, arrays = program.scalars, program.arrays(length).items()
    for column, (name, default) in zip(columns[: len(scalars)], scalars, strict=True):
        column[: len(rows)] = [row[name] for row in rows]
        column[len(rows) :] = default
    for column, (name, default) in zip(columns[len(scalars) :], arrays, strict=True):
        column[:] = default
        for index, row in enumerate(rows):
            column[index, *map(slice, np.shape(row[name]))] = row[name]
    return arguments


def _specs(program: Program, batch: int, length: int) -> list[ArraySpec]:
    """What a call takes: the ragged argument, lengths, scalars and arrays, in this order."""
    ragged, arrays = program.ragged, program.arrays(length).values()
    return [
        ((batch, length, *ragged.trailing), np.dtype(ragged.dtype)),
        ((batch,), np.dtype(np.int32)),
        *(((batch,), default.dtype) for _, default in program.scalars),
        *(((batch, *default.shape), default.dtype) for default in arrays),
    ]

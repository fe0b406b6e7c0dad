"""Compiled functions of one model over a closed set of shapes; synchronous, no HTTP.

A program takes rows of different lengths. Rows are padded in numpy to one of the program's
(batch, length) shapes; every shape is compiled and tried out before the first request, so nothing
is ever compiled for one. What was compiled at an earlier start is loaded instead of being traced
and compiled again. Matrices may be kept, and multiplied, in half the width; all else is float32.
"""

import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.checkpoint import Bundle
from models.cores import compiler_options
from models.packed_blocks import narrowed
from models.products import multiplied_in
from service.arguments import Arguments, take_apart
from service.errors import NonFiniteOutput
from service.executables import NOTHING_KEPT, Executables
from service.programs import Program, Result, Row, collate, trial_rows

logger = logging.getLogger(__name__)

Outcome = Result | NonFiniteOutput
Progress = Callable[[str], None]


class _Form(NamedTuple):
    """A model as plain arrays: a call goes through a Flax state three times as long."""

    leaves: list[jax.Array]
    rebuild: Callable[[list[jax.Array]], Any]

    @classmethod
    def of(cls, model: Any, dtype: Any) -> "_Form":
        """The parameters of a Flax module, or of a packed model with its matrices in ``dtype``."""
        if not isinstance(model, nnx.Module):
            leaves, tree = jax.tree.flatten(narrowed(model, dtype))
            return cls(leaves, tree.unflatten)
        graph, state = nnx.split(model)
        leaves, tree = jax.tree.flatten(state)
        return cls(leaves, lambda leaves: nnx.merge(graph, tree.unflatten(leaves)))


class Engine:
    """One model's programs, compiled for one device; any number of threads may run them.

    Parameters lie on the device of ``bundle`` once. What goes into a product with a matrix of
    parameters is rounded to ``dtype``.
    ``call_cost_rows`` is what a call costs by itself, as a number of rows that take as long.
    """

    def __init__(
        self,
        bundle: Bundle,
        programs: Sequence[Program],
        dtype: str = "float32",
        executables: Executables = NOTHING_KEPT,
        call_cost_rows: float = 1.0,
    ) -> None:
        self.card = bundle.card
        self.call_cost_rows = call_cost_rows
        self.programs = {program.name: program for program in programs}
        self.num_loaded = 0
        self._dtype = jnp.dtype(dtype)
        self._executables = executables
        self._forms = {
            pack: _Form.of(pack(bundle.model), self._dtype)
            for pack in {program.pack for program in programs}
        }
        self._compiled: dict[tuple[str, int, int], Callable[..., dict[str, jax.Array]]] = {}
        self._loading = threading.Lock()

    @property
    def num_shapes(self) -> int:
        """How many shapes there are to compile."""
        return sum(len(program.grid) for program in self.programs.values())

    def warm_up(self, progress: Progress, num_threads: int = 1) -> None:
        """Compiles every program at every shape, or loads it, and tries it out as requests would.

        So many shapes are worked at together. ``num_loaded`` then says how many of them an earlier
        start had compiled. Programs on demand need only be on disk, where they can be.

        Raises:
            NonFiniteOutput: if the model gives NaN or infinity.
        """

        def prepare(program: Program, batch: int, length: int) -> bool:
            progress(f"{program.name} {batch}x{length}")
            return self._prepare(program, batch, length)

        shapes = [(p, *shape) for p in self.programs.values() for shape in p.grid]
        if num_threads == 1:
            self.num_loaded = sum(prepare(*shape) for shape in shapes)
            return
        with ThreadPoolExecutor(num_threads, thread_name_prefix="compiler") as threads:
            # Each in a context like this one: what is counted there is counted as here.
            under_way = [
                threads.submit(contextvars.copy_context().run, prepare, *shape) for shape in shapes
            ]
            try:
                self.num_loaded = sum(future.result() for future in under_way)
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _prepare(self, program: Program, batch: int, length: int) -> bool:
        """Has a shape ready, or on disk if it is on demand, and says whether it was kept there."""
        key = self._key(program, batch, length)
        if program.is_on_demand and self._executables.holds(key):
            return True
        if self._load(program, batch, length):
            return True
        shape = program.name, batch, length
        self._compiled[shape] = compiled = self._compile(program, batch, length)
        # Before it runs for the first time: some executables cannot be given out after that.
        is_kept = self._executables.keep(key, compiled)
        self._try_out(program, batch, length)
        if program.is_on_demand and is_kept:
            del self._compiled[shape]
        return False

    def _load(self, program: Program, batch: int, length: int) -> bool:
        """Whether a shape was on disk, and runs."""
        shape = program.name, batch, length
        loaded = self._executables.load(self._key(program, batch, length))
        if loaded is None:
            return False
        self._compiled[shape] = loaded
        try:
            self._try_out(program, batch, length)
        except jax.errors.JaxRuntimeError as error:
            logger.warning("%s does not run and is compiled anew: %s", shape, error)
            return False
        return True

    def _key(self, program: Program, batch: int, length: int) -> str:
        return self._executables.key(self.card, program.name, batch, length, self._dtype.name)

    def _try_out(self, program: Program, batch: int, length: int) -> None:
        for outcome in self.run(program.name, trial_rows(program, batch, length)):
            if isinstance(outcome, NonFiniteOutput):
                raise outcome

    def _compile(self, program: Program, batch: int, length: int) -> jax.stages.Compiled:
        form, dtype = self._forms[program.pack], self._dtype
        arguments = collate(program, [], batch, length)
        specs = arguments.specs

        def function(leaves: list[jax.Array], *joined: jax.Array) -> dict[str, jax.Array]:
            with multiplied_in(dtype):
                outputs = program.function(form.rebuild(leaves), *take_apart(joined, specs))
            return {key: jnp.asarray(array) for key, array in outputs.items()}

        (device,) = form.leaves[0].devices()
        lowered = jax.jit(function).lower(form.leaves, *arguments.joined)
        return lowered.compile(compiler_options=compiler_options(device))

    def run(self, name: str, rows: Sequence[Row]) -> list[Outcome]:
        """The results of ``rows``, in order, each with its padding still on.

        The rows must fit one compiled shape. In place of a result that holds NaN or infinity
        stands an error, so that one row does not spoil those that happen to share its batch.
        """
        program = self.programs[name]
        longest = max(len(row[program.ragged.name]) for row in rows)
        batch, length = program.shape(len(rows), longest)
        arguments = collate(program, rows, batch, length)
        outputs = self._call(program, batch, length, arguments)
        results = [
            {key: array[index, ...] for key, array in outputs.items()} for index in range(len(rows))
        ]
        # Of all rows at once it is soon said that they are right, as they mostly are.
        if all(_is_finite(array[: len(rows)]) for array in outputs.values()):
            return [*results]
        return [_checked(name, result) for result in results]

    def _call(self, program: Program, batch: int, length: int, arguments: Arguments) -> Result:
        compiled = self._compiled.get((program.name, batch, length))
        if compiled is None:
            compiled = self._fetch(program, batch, length)
        outputs = compiled(self._forms[program.pack].leaves, *arguments.joined)
        return {key: np.asarray(array) for key, array in outputs.items()}

    def _fetch(
        self, program: Program, batch: int, length: int
    ) -> Callable[..., dict[str, jax.Array]]:
        """A shape that has stayed on disk until now."""
        shape = program.name, batch, length
        with self._loading:
            if shape not in self._compiled and not self._load(program, batch, length):
                # It was there when the model was loaded, and somebody has taken it away since.
                self._compiled[shape] = self._compile(program, batch, length)
            return self._compiled[shape]

    def is_in_memory(self, name: str, length: int) -> bool:
        """Whether rows of that compiled length can run without anything being fetched from disk."""
        sizes = self.programs[name].batch_sizes(length)
        return any((name, size, length) in self._compiled for size in sizes)

    def fit(self, name: str, length: int, num_rows: int) -> int:
        """How many of ``num_rows`` rows of one compiled length had best run in one call.

        That is where a row costs least, the padding of the batch and the call itself included.
        """

        def row_cost(size: int) -> float:
            return (size + self.call_cost_rows) / min(size, num_rows)

        return min(min(self.programs[name].batch_sizes(length), key=row_cost), num_rows)


class Slot(NamedTuple):
    """Where rows can share a batch: one engine, one program, one compiled length."""

    engine: Engine
    program: str
    bucket: int

    def run(self, rows: Sequence[Row]) -> list[Outcome]:
        """The results of ``rows``, in order, with errors in place of those that are no good."""
        return self.engine.run(self.program, rows)

    @property
    def is_in_memory(self) -> bool:
        """Whether rows can run without anything being fetched from disk."""
        return self.engine.is_in_memory(self.program, self.bucket)

    def fit(self, num_rows: int) -> int:
        """How many of so many rows had best run in one call."""
        return self.engine.fit(self.program, self.bucket, num_rows)

    def num_places(self, rows: Sequence[Row]) -> tuple[int, int]:
        """How many tokens ``rows`` hold, and how many the batch computes that they run in."""
        program = self.engine.programs[self.program]
        lengths = [len(row[program.ragged.name]) for row in rows]
        batch, length = program.shape(len(rows), max(lengths))
        return sum(lengths), batch * length


def _checked(program: str, result: Result) -> Outcome:
    for key, array in result.items():
        if not _is_finite(array):
            return NonFiniteOutput(f"{program}: {key} holds NaN or infinity")
    return result


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())

"""A step whose shares are worked out side by side, each by a thread of its own, on one CPU.

The threads of XLA share products that are too small to share well. A call that runs from beginning
to end in the thread that makes it (``models.cores.run_calls_side_by_side``) has a core to itself,
so each thread takes a share of the rows; their gradients are added in the order of the rows.
Sources: docs/decisions/0027-training-on-a-cpu.md, docs/decisions/0034-parts-that-fit-a-heap.md.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.cores import IN_ORDER, Cores

Batch = dict[str, np.ndarray]

# The most bytes that a call works in. What it works in is one array of the C library's, and a
# thread's heap, 64 MiB at most in glibc, has to hold it beside results of calls: where it does not,
# every call takes its memory from the system anew.
MOST_AT_ONCE = 3 * 2**24


class StepsSideBySide:
    """Takes steps over ``num_threads`` equal shares of a batch.

    ``gradient(params, rows)`` gives sums over rows, which are added up; ``update(state, sums)``
    gives the next state and a loss. A state is used up by a step. A thread goes through its share
    in ``num_parts`` equal parts, or more of them where a call would need more than
    ``most_at_once`` bytes: one call each, as XLA hands the rounds of a loop to its pool.
    """

    def __init__(
        self,
        gradient: Callable[..., Any],
        update: Callable[..., Any],
        num_threads: int,
        num_parts: int = 1,
        most_at_once: int = MOST_AT_ONCE,
    ) -> None:
        def add(sums: Any, params: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, sums, gradient(params, part))

        def finish(state: Any, shares: Sequence[Any]) -> Any:
            return update(state, jax.tree.map(lambda first, *rest: sum(rest, first), *shares))

        self._gradient = jax.jit(gradient)
        self._add = jax.jit(add, donate_argnums=0)
        self._finish = jax.jit(finish, donate_argnums=0)
        self._compiled: dict[Any, _Executables] = {}
        self._num_threads = num_threads
        self._num_parts = num_parts
        self._most_at_once = most_at_once
        self._cores = Cores(num_threads)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="share")

    def run(self, state: Any, batches: Sequence[Batch]) -> tuple[Any, np.ndarray]:
        """The state after a step on each of ``batches``, and their losses."""
        losses = []
        for batch in batches:
            compiled = self._executables(state, batch)
            under_way = [
                self._threads.submit(self._cores.run, compiled.sums_of, state.params, share)
                for share in _split(batch, self._num_threads)
            ]
            state, loss = compiled.finish(state, [one.result() for one in under_way])
            losses.append(float(loss))
        return state, np.array(losses, np.float32)

    def flops(self, batches: Sequence[Batch]) -> float:
        """Floating-point operations of a step, as the compiler counts them; 0 before the first."""
        compiled = self._compiled.get(_shapes(batches[0]))
        if compiled is None:
            return 0.0
        num_calls = self._num_threads * compiled.num_parts
        return num_calls * _flops(compiled.gradient) + _flops(compiled.finish)

    def _executables(self, state: Any, batch: Batch) -> "_Executables":
        shapes = _shapes(batch)
        if shapes not in self._compiled:
            self._compiled[shapes] = self._compile(state, _split(batch, self._num_threads)[0])
        return self._compiled[shapes]

    def _compile(self, state: Any, share: Batch) -> "_Executables":
        part, num_parts = _split(share, self._num_parts)[0], self._num_parts
        gradient = self._compiling(self._gradient, state.params, part)
        more = self._enough_parts(gradient.result(), part)
        if more > 1:
            part, num_parts = _split(part, more)[0], num_parts * more
            gradient = self._compiling(self._gradient, state.params, part)
        sums = jax.eval_shape(self._gradient, state.params, part)
        add = self._compiling(self._add, sums, state.params, part) if num_parts > 1 else None
        finish = self._compiling(self._finish, state, [sums] * self._num_threads)
        return _Executables(gradient.result(), finish.result(), add and add.result(), num_parts)

    def _compiling(self, function: Any, *args: Any) -> Future[jax.stages.Compiled]:
        lowered = function.lower(*args)
        return self._threads.submit(lowered.compile, compiler_options=IN_ORDER)

    def _enough_parts(self, gradient: jax.stages.Compiled, part: Batch) -> int:
        """Into how many a part is to be split for each to fit, as far as its rows can be."""
        analysis = gradient.memory_analysis()
        needed = analysis.temp_size_in_bytes if analysis else 0
        num_rows = math.gcd(*map(len, part.values()))
        wanted = math.ceil(needed / self._most_at_once)
        counts = [count for count in range(1, num_rows + 1) if num_rows % count == 0]
        return next((count for count in counts if count >= wanted), num_rows)


class _Executables(NamedTuple):
    """The calls of a step; ``add`` is there where a share has several parts."""

    gradient: jax.stages.Compiled
    finish: jax.stages.Compiled
    add: jax.stages.Compiled | None
    num_parts: int

    def sums_of(self, params: Any, share: Batch) -> Any:
        """The sums over a share, part after part."""
        first, *rest = _split(share, self.num_parts)
        sums = self.gradient(params, first)
        for part in rest:
            assert self.add
            sums = self.add(sums, params, part)
        return sums


def _split(batch: Batch, count: int) -> list[Batch]:
    """``count`` equal parts of the rows of a batch, in order."""
    split = {name: np.split(rows, count) for name, rows in batch.items()}
    return [{name: rows[index] for name, rows in split.items()} for index in range(count)]


def _shapes(batch: Batch) -> tuple[Any, ...]:
    return tuple((name, rows.shape) for name, rows in batch.items())


def _flops(compiled: jax.stages.Compiled) -> float:
    return float((compiled.cost_analysis() or {}).get("flops", 0.0))

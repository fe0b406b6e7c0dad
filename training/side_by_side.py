"""A step whose shares are worked out side by side, each by a thread of its own, on one CPU.

The threads of XLA share products that are too small to share well. A call that runs from beginning
to end in the thread that makes it (``models.cores.run_calls_side_by_side``) has a core to itself,
so each thread takes a share of the rows; their gradients are added in the order of the rows.
Source: docs/decisions/0027-training-on-a-cpu.md.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.cores import IN_ORDER, Cores

Batch = dict[str, np.ndarray]


class StepsSideBySide:
    """Takes steps over ``num_threads`` equal shares of a batch.

    ``gradient(params, rows)`` gives sums over rows, which are added up; ``update(state, sums)``
    gives the next state and a loss. A state is used up by a step. A thread goes through its share
    in ``num_parts`` equal parts: one call each, as XLA hands the rounds of a loop to its pool.
    """

    def __init__(
        self,
        gradient: Callable[..., Any],
        update: Callable[..., Any],
        num_threads: int,
        num_parts: int = 1,
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
        self._cores = Cores(num_threads)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="share")

    def run(self, state: Any, batches: Sequence[Batch]) -> tuple[Any, np.ndarray]:
        """The state after a step on each of ``batches``, and their losses."""
        losses = []
        for batch in batches:
            shares = self._shares(batch)
            compiled = self._executables(state, shares[0][0])
            under_way = [
                self._threads.submit(self._cores.run, compiled.sums_of, state.params, share)
                for share in shares
            ]
            state, loss = compiled.finish(state, [one.result() for one in under_way])
            losses.append(float(loss))
        return state, np.array(losses, np.float32)

    def flops(self, batches: Sequence[Batch]) -> float:
        """Floating-point operations of a step, as the compiler counts them; 0 before the first."""
        compiled = self._compiled.get(_shapes(self._shares(batches[0])[0][0]))
        if compiled is None:
            return 0.0
        num_calls = self._num_threads * self._num_parts
        return num_calls * _flops(compiled.gradient) + _flops(compiled.finish)

    def _shares(self, batch: Batch) -> list[list[Batch]]:
        """The parts of each thread's share."""
        count = self._num_threads * self._num_parts
        split = {name: np.split(rows, count) for name, rows in batch.items()}
        parts = [{name: rows[index] for name, rows in split.items()} for index in range(count)]
        return [
            parts[first : first + self._num_parts] for first in range(0, count, self._num_parts)
        ]

    def _executables(self, state: Any, part: Batch) -> "_Executables":
        shapes = _shapes(part)
        if shapes not in self._compiled:
            sums = jax.eval_shape(self._gradient, state.params, part)
            lowered = [
                self._gradient.lower(state.params, part),
                self._finish.lower(state, [sums] * self._num_threads),
            ]
            if self._num_parts > 1:
                lowered.append(self._add.lower(sums, state.params, part))
            compiled = [one.compile(compiler_options=IN_ORDER) for one in lowered]
            self._compiled[shapes] = _Executables(*compiled)
        return self._compiled[shapes]


class _Executables(NamedTuple):
    """The calls of a step; ``add`` is there where a share has several parts."""

    gradient: jax.stages.Compiled
    finish: jax.stages.Compiled
    add: jax.stages.Compiled | None = None

    def sums_of(self, params: Any, share: Sequence[Batch]) -> Any:
        """The sums over a share, part after part."""
        first, *rest = share
        sums = self.gradient(params, first)
        for part in rest:
            assert self.add
            sums = self.add(sums, params, part)
        return sums


def _shapes(share: Batch) -> tuple[Any, ...]:
    return tuple((name, rows.shape) for name, rows in share.items())


def _flops(compiled: jax.stages.Compiled) -> float:
    return float((compiled.cost_analysis() or {}).get("flops", 0.0))

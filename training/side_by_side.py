"""A step whose parts are worked out side by side, each by a thread of its own, on one CPU.

The threads of XLA share products that are too small to share well. A call that runs from beginning
to end in the thread that makes it (``models.cores.run_calls_side_by_side``) has a core to itself,
so each thread takes a share of the rows; their gradients are added in the order of the rows.
Source: docs/decisions/0027-training-on-a-cpu.md.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from models.cores import IN_ORDER, Cores

Batch = dict[str, np.ndarray]


class StepsSideBySide:
    """Takes steps over ``num_threads`` equal shares of a batch.

    ``gradient(params, rows)`` gives sums over rows, which are added up; ``update(state, sums)``
    gives the next state and a loss. A state is used up by a step.
    """

    def __init__(
        self, gradient: Callable[..., Any], update: Callable[..., Any], num_threads: int
    ) -> None:
        def add(state: Any, parts: Sequence[Any]) -> Any:
            return update(state, jax.tree.map(lambda first, *rest: sum(rest, first), *parts))

        self._gradient = jax.jit(gradient)
        self._update = jax.jit(add, donate_argnums=0)
        self._compiled: dict[Any, tuple[Any, ...]] = {}
        self._num_threads = num_threads
        self._cores = Cores(num_threads)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="share")

    def run(self, state: Any, batches: Sequence[Batch]) -> tuple[Any, np.ndarray]:
        """The state after a step on each of ``batches``, and their losses."""
        losses = []
        for batch in batches:
            shares = self._shares(batch)
            gradient, update = self._executables(state, shares[0])
            under_way = [
                self._threads.submit(self._cores.run, gradient, state.params, share)
                for share in shares
            ]
            state, loss = update(state, [one.result() for one in under_way])
            losses.append(float(loss))
        return state, np.array(losses, np.float32)

    def flops(self, batches: Sequence[Batch], num_microbatches: int) -> float:
        """Floating-point operations of a step, as the compiler counts them; 0 before the first.

        It counts one of the parts that a thread goes through.
        """
        share = self._shares(batches[0])[0]
        gradient, update = self._compiled.get(_shapes(share), (None, None))
        return self._num_threads * num_microbatches * _flops(gradient) + _flops(update)

    def _shares(self, batch: Batch) -> list[Batch]:
        parts = {name: np.split(rows, self._num_threads) for name, rows in batch.items()}
        return [
            {name: rows[index] for name, rows in parts.items()}
            for index in range(self._num_threads)
        ]

    def _executables(self, state: Any, share: Batch) -> tuple[Any, ...]:
        shapes = _shapes(share)
        if shapes not in self._compiled:
            sums = jax.eval_shape(self._gradient, state.params, share)
            self._compiled[shapes] = tuple(
                lowered.compile(compiler_options=IN_ORDER)
                for lowered in (
                    self._gradient.lower(state.params, share),
                    self._update.lower(state, [sums] * self._num_threads),
                )
            )
        return self._compiled[shapes]


def _shapes(share: Batch) -> tuple[Any, ...]:
    return tuple((name, rows.shape) for name, rows in share.items())


def _flops(compiled: Any) -> float:
    analysis = compiled.cost_analysis() if compiled else None
    return float((analysis or {}).get("flops", 0.0))

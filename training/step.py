"""One training step: pure, over split state, with donated buffers, on any number of devices.

The batch is split over the devices and the parameters are on all of them; the compiler adds the
sum over devices. A step may itself go through its batch in parts and add up their gradients, and
several steps may be dispatched as one. None of this changes what is computed, beyond the order in
which numbers are added. On a CPU, threads may take a share of the batch each instead
(training/side_by_side.py).

Axis letters: B batch, T position, V vocab.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from models.products import multiplied_in
from training.devices import DevicesError, data_mesh, is_one_cpu
from training.side_by_side import StepsSideBySide

Batch = dict[str, np.ndarray]


class Objective(NamedTuple):
    """A loss as a sum over what it counts, in nats, and how many that are."""

    total: Float[Array, ""]
    num_counted: Float[Array, ""]

    @property
    def mean(self) -> Float[Array, ""]:
        """The loss of one, in nats; 0 where there is none."""
        return self.total / jnp.maximum(self.num_counted, 1.0)


Loss = Callable[[Any, Any], Objective]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimization:
    """How long and how hard to train.

    The learning rate rises over ``warmup_steps``; with ``use_decay`` it then falls to 2 % of
    itself along a cosine. ``max_grad_norm`` None leaves gradients unclipped. A step adds up the
    gradients of ``num_microbatches`` equal parts of its batch; ``steps_per_dispatch`` steps of
    one shape are sent to the device at a time.

    Raises:
        ValueError: if a number cannot be trained with, or the parts are not equal.
    """

    num_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    warmup_steps: int = 0
    use_decay: bool = False
    max_grad_norm: float | None = None
    num_microbatches: int = 1
    steps_per_dispatch: int = 1

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "num_microbatches", "steps_per_dispatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate: expected a number above 0, got {self.learning_rate}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: expected at least 0, got {self.weight_decay}")
        if not 0 <= self.warmup_steps < self.num_steps:
            raise ValueError(
                f"warmup_steps: expected 0..{self.num_steps - 1}, got {self.warmup_steps}"
            )
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm: expected a number above 0, got {self.max_grad_norm}")
        if self.batch_size % self.num_microbatches:
            raise ValueError(
                f"num_microbatches: expected a divisor of batch_size {self.batch_size}, "
                f"got {self.num_microbatches}"
            )

    def schedule(self) -> optax.Schedule:
        """Learning rate by step."""
        if self.use_decay:
            return optax.warmup_cosine_decay_schedule(
                0.0,
                self.learning_rate,
                self.warmup_steps,
                self.num_steps,
                0.02 * self.learning_rate,
            )
        return optax.linear_schedule(
            self.learning_rate / (self.warmup_steps + 1), self.learning_rate, self.warmup_steps
        )

    def transformation(self) -> optax.GradientTransformation:
        """AdamW (Loshchilov and Hutter, 2017, arXiv:1711.05101), after clipping if asked for."""
        adamw = optax.adamw(self.schedule(), weight_decay=self.weight_decay)
        if self.max_grad_norm is None:
            return adamw
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), adamw)


class TrainState(NamedTuple):
    """All that a step changes."""

    params: Any
    opt_state: optax.OptState


class Trainer:
    """A model's compiled training steps over a mesh of devices, one executable for each shape.

    All is float32, but what goes into a product with a matrix of parameters is rounded to
    ``dtype``. On one CPU, ``num_threads`` share every batch.

    Raises:
        DevicesError: if there are several threads, and not one CPU alone.
    """

    def __init__(
        self,
        model: nnx.Module,
        loss: Loss,
        optimization: Optimization,
        *,
        mesh: Mesh | None = None,
        dtype: Any = jnp.float32,
        num_threads: int = 1,
    ) -> None:
        self.mesh = mesh or data_mesh()
        if num_threads > 1 and not is_one_cpu(self.mesh):
            raise DevicesError(f"num_threads: expected 1 beside {self.mesh}, got {num_threads}")
        self.graph, params = nnx.split(model, nnx.Param)
        tx = optimization.transformation()
        self._replicated = NamedSharding(self.mesh, PartitionSpec())
        self._by_row = NamedSharding(self.mesh, PartitionSpec(None, "data"))
        self.state: TrainState = jax.device_put(
            TrainState(params, tx.init(params)), self._replicated
        )
        num_parts = optimization.num_microbatches
        rounding = multiplied_in(dtype, is_on_one_cpu=is_one_cpu(self.mesh))
        gradient = partial(gradients, self.graph, rounding(loss))
        step = partial(train_step, partial(gradient, num_parts), tx)
        self._run = jax.jit(partial(jax.lax.scan, step), donate_argnums=0)
        self._compiled: dict[Any, Any] = {}
        self._num_microbatches = num_parts
        self.dtype = dtype
        self.num_threads = num_threads
        self._side_by_side = (
            StepsSideBySide(partial(gradient, 1), partial(update, tx), num_threads, num_parts)
            if num_threads > 1
            else None
        )

    def run(self, batches: Sequence[Batch]) -> np.ndarray:
        """Takes a step on each of ``batches``, which are of one shape; gives their losses.

        Raises:
            DevicesError: if the rows cannot be split evenly over the devices, or the threads, and
                their microbatches.
        """
        self._require_shares(batches)
        if self._side_by_side:
            self.state, losses = self._side_by_side.run(self.state, batches)
            return losses
        stacked = {name: np.stack([b[name] for b in batches]) for name in batches[0]}
        placed = jax.tree.map(self._place, stacked)
        compiled = self._executable(placed)
        self.state, losses = compiled(self.state, placed)
        return np.asarray(losses.addressable_data(0))

    def _require_shares(self, batches: Sequence[Batch]) -> None:
        count, what = self.mesh.size, "devices"
        if self._side_by_side:
            count, what = self.num_threads, "threads"
        multiple, wanted = count * self._num_microbatches, f"{count} {what}"
        if self._num_microbatches > 1:
            wanted = f"{multiple}, for {wanted} of {self._num_microbatches} microbatches each"
        for name, rows in batches[0].items():
            if len(rows) % multiple:
                raise DevicesError(
                    f"{name}: expected rows in a multiple of {wanted}, got {len(rows)}"
                )

    def _place(self, values: np.ndarray) -> jax.Array:
        """``values`` over the devices; every process holds all of them and gives its own rows."""
        return jax.make_array_from_callback(values.shape, self._by_row, values.__getitem__)

    def _executable(self, placed: dict[str, jax.Array]) -> Any:
        shapes = tuple(sorted((name, array.shape) for name, array in placed.items()))
        if shapes not in self._compiled:
            self._compiled[shapes] = self._run.lower(self.state, placed).compile()
        return self._compiled[shapes]

    def flops(self, batches: Sequence[Batch]) -> float:
        """Floating-point operations of a step on such batches, as the compiler counts them.

        0 where it does not, and before the first step of that shape.
        """
        if self._side_by_side:
            return self._side_by_side.flops(batches)
        shapes = tuple(sorted((name, (len(batches), *b.shape)) for name, b in batches[0].items()))
        compiled = self._compiled.get(shapes)
        analysis = compiled.cost_analysis() if compiled else None
        # The compiler counts the body of a loop once, and what one device does.
        factor = self.mesh.size * self._num_microbatches
        return float((analysis or {}).get("flops", 0.0)) * factor

    @property
    def model(self) -> nnx.Module:
        """The model as trained so far, on this process's first device."""
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf.addressable_data(0)), self.state.params)
        return nnx.merge(self.graph, params)


Sums = tuple[tuple[Float[Array, ""], Float[Array, ""]], Any]


def train_step(
    gradient: Callable[..., Sums],
    tx: optax.GradientTransformation,
    state: TrainState,
    batch: dict[str, jax.Array],
) -> tuple[TrainState, Float[Array, ""]]:
    """The state after one step on ``batch``, and the mean loss before it."""
    return update(tx, state, gradient(state.params, batch))


def gradients(
    graph: Any,
    loss: Loss,
    num_microbatches: int,
    params: Any,
    batch: dict[str, jax.Array],
) -> Sums:
    """The loss of a batch, how much it counts, and the loss's gradient: sums over rows."""

    def objective(params: Any, part: dict[str, jax.Array]) -> tuple[Any, Any]:
        return loss(nnx.merge(graph, params), part)

    gradient = jax.value_and_grad(objective, has_aux=True)
    if num_microbatches == 1:
        return gradient(params, batch)
    parts = jax.tree.map(partial(_split, num_microbatches), batch)

    def add(sums: Any, part: dict[str, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, gradient(params, part)), None

    shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zeros, parts)[0]


def update(
    tx: optax.GradientTransformation, state: TrainState, sums: Sums
) -> tuple[TrainState, Float[Array, ""]]:
    """The state after a step along the mean of such sums, and the mean loss."""
    (total, count), grads = sums
    count = jnp.maximum(count, 1.0)
    grads = jax.tree.map(lambda leaf: leaf / count, grads)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    return TrainState(optax.apply_updates(state.params, updates), opt_state), total / count


def _split(count: int, rows: Array) -> Array:
    """``rows`` (B, ...) as (count, B / count, ...); each part has rows of every device."""
    return rows.reshape(rows.shape[0] // count, count, *rows.shape[1:]).swapaxes(0, 1)


def token_losses(logits: Float[Array, "B T V"], tokens: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Cross-entropy at every position, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens)


def counted(values: Float[Array, "B T"], weights: Float[Array, "B T"]) -> Objective:
    """The sum of ``values`` where ``weights`` are 1, and how many those are."""
    return Objective(jnp.sum(values * weights), jnp.sum(weights))


def jitted(model: nnx.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of the model and arrays, compiled, as a function of the arrays alone."""
    graph, state = nnx.split(model)
    return partial(
        jax.jit(lambda state, *arrays: function(nnx.merge(graph, state), *arrays)), state
    )

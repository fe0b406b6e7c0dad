"""One training step: pure, over split state, with donated buffers.

Axis letters: B batch, T position.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

Batch = dict[str, Any]
Loss = Callable[[nnx.Module, Batch], Float[Array, ""]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimization:
    """How long and how hard to train.

    The learning rate rises over ``warmup_steps``; with ``use_decay`` it then falls to 2 % of
    itself along a cosine. ``max_grad_norm`` None leaves gradients unclipped.

    Raises:
        ValueError: if a number cannot be trained with.
    """

    num_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    warmup_steps: int = 0
    use_decay: bool = False
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size"):
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
    """A model's compiled training step; shapes that come again are not compiled again."""

    def __init__(self, model: nnx.Module, loss: Loss, tx: optax.GradientTransformation) -> None:
        self.graph, params = nnx.split(model, nnx.Param)
        self.state = TrainState(params, tx.init(params))
        self._step = jax.jit(partial(train_step, self.graph, loss, tx), donate_argnums=0)

    def step(self, batch: Batch) -> Float[Array, ""]:
        """Takes one step on ``batch`` and gives its loss, in nats."""
        self.state, loss = self._step(self.state, batch)
        return loss

    @property
    def model(self) -> nnx.Module:
        """The model as trained so far."""
        return nnx.merge(self.graph, self.state.params)


def train_step(
    graph: Any, loss: Loss, tx: optax.GradientTransformation, state: TrainState, batch: Batch
) -> tuple[TrainState, Float[Array, ""]]:
    """The state after one step on ``batch``, and the loss before it."""

    def objective(params: nnx.State) -> Float[Array, ""]:
        return loss(nnx.merge(graph, params), batch)

    value, grads = jax.value_and_grad(objective)(state.params)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    return TrainState(optax.apply_updates(state.params, updates), opt_state), value


def token_losses(logits: Float[Array, "B T V"], tokens: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Cross-entropy at every position, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens)


def weighted_mean(values: Float[Array, "B T"], weights: Float[Array, "B T"]) -> Float[Array, ""]:
    """The mean of ``values`` where ``weights`` are 1; 0 where none is."""
    return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1.0)


def jitted(model: nnx.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of the model and arrays, compiled, as a function of the arrays alone."""
    graph, state = nnx.split(model)
    return partial(
        jax.jit(lambda state, *arrays: function(nnx.merge(graph, state), *arrays)), state
    )

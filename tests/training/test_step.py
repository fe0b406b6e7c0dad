import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.checkpoint import flatten
from models.wirings import WIRINGS
from training.devices import data_mesh
from training.loop import dispatches
from training.step import Optimization, Trainer, counted, token_losses

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
BASE = Optimization(num_steps=100, batch_size=8, learning_rate=1e-3)
WARM = dataclasses.replace(BASE, warmup_steps=10, use_decay=True)
# How far the loss on one batch must fall, as a share of its start, in as many steps.
OVERFIT = {"masked-lm": 0.1, "reversal": 0.1, "perceiver": 0.1, "causal-lm": 0.6}
OVERFIT_STEPS = 100


def fresh_trainer(recipe, learning_rate):
    """A trainer of a model of its own: steps donate what they are given."""
    identity = recipe.identity()
    model = WIRINGS[identity.wiring].model(identity.config, rngs=nnx.Rngs(0))
    optimization = dataclasses.replace(BASE, learning_rate=learning_rate)
    return Trainer(model, recipe.loss, optimization, mesh=data_mesh(jax.devices()[:1]))


@pytest.mark.parametrize("name", OVERFIT)
def test_every_wiring_overfits_one_batch(recipes, name):
    trainer = fresh_trainer(recipes[name], learning_rate=1e-2)
    batch = recipes[name].batch(0)
    losses = [float(trainer.run([batch])[0]) for _ in range(OVERFIT_STEPS)]
    assert losses[-1] < OVERFIT[name] * losses[0], (losses[0], losses[-1])


@pytest.fixture(scope="module")
def restart(recipes):
    """Gives the same untrained reversal trainer again, without compiling its step again."""
    with jax.numpy_dtype_promotion("standard"):
        trainer = fresh_trainer(recipes["reversal"], learning_rate=1e-3)
    start = trainer.state

    def begin_again():
        trainer.state = jax.tree.map(jnp.copy, start)
        return trainer

    return begin_again


def test_two_trainings_are_the_same_bit_for_bit(recipes, restart):
    runs = []
    for _ in range(2):
        trainer = restart()
        losses = [float(trainer.run([recipes["reversal"].batch(step)])[0]) for step in range(3)]
        params = flatten(nnx.state(trainer.model, nnx.Param))
        runs.append((losses, jax.tree.map(np.asarray, params)))
    jax.tree.map(np.testing.assert_array_equal, *runs)


def test_the_loss_of_a_step_is_that_before_it(recipes, restart):
    recipe, trainer = recipes["reversal"], restart()
    batch, other = recipe.batch(0), recipe.batch(1)
    graph, params = nnx.split(trainer.model, nnx.Param)
    loss = jax.jit(lambda params, batch: recipe.loss(nnx.merge(graph, params), batch).mean)
    before = float(loss(params, batch))
    assert float(trainer.run([batch])[0]) == pytest.approx(before, abs=TOLERANCE)
    after = float(loss(nnx.state(trainer.model, nnx.Param), other))
    assert float(trainer.run([other])[0]) == pytest.approx(after, abs=TOLERANCE)
    assert float(loss(nnx.state(trainer.model, nnx.Param), batch)) != before


def test_without_warm_up_or_decay_the_learning_rate_is_constant():
    schedule = BASE.schedule()
    assert [float(schedule(step)) for step in (0, 1, 50, 100)] == pytest.approx([1e-3] * 4)


def test_warm_up_rises_in_even_steps_and_stays():
    schedule = dataclasses.replace(BASE, warmup_steps=4).schedule()
    expected = [0.2e-3, 0.4e-3, 0.6e-3, 0.8e-3, 1e-3, 1e-3]
    assert [float(schedule(step)) for step in (0, 1, 2, 3, 4, 99)] == pytest.approx(expected)


def test_decay_falls_along_a_cosine_to_2_percent():
    schedule = WARM.schedule()
    halfway = 1e-3 * (0.02 + 0.98 / 2)
    expected = [0, 0.5e-3, 1e-3, halfway, 0.02e-3, 0.02e-3]
    got = [float(schedule(step)) for step in (0, 5, 10, 55, 100, 200)]
    assert got == pytest.approx(expected, abs=1e-9)


def update(optimization, grad, param=1.0):
    """The first change of a parameter; Adam's first step is the sign times the learning rate."""
    tx = optimization.transformation()
    params = jnp.array([param, param])
    updates, _ = jax.jit(tx.update)(jnp.asarray(grad), tx.init(params), params)
    return np.asarray(updates)


def test_a_first_step_is_the_learning_rate_against_the_gradient():
    np.testing.assert_allclose(update(BASE, [3.0, -0.1]), [-1e-3, 1e-3], rtol=1e-4)


def test_weight_decay_pulls_parameters_to_zero_without_a_gradient():
    np.testing.assert_array_equal(update(BASE, [0.0, 0.0]), [0, 0])
    decaying = dataclasses.replace(BASE, weight_decay=0.1)
    np.testing.assert_allclose(update(decaying, [0.0, 0.0], param=2.0), [-2e-4] * 2, rtol=1e-4)


def test_clipping_bounds_the_norm_of_what_adam_sees():
    """Clipped to a norm far below Adam's epsilon, a gradient hardly moves anything."""
    clipped = dataclasses.replace(BASE, max_grad_norm=1e-10)
    assert np.abs(update(clipped, [3.0, -4.0])).max() < 1e-5
    generous = dataclasses.replace(BASE, max_grad_norm=10.0)
    np.testing.assert_allclose(update(generous, [3.0, -4.0]), update(BASE, [3.0, -4.0]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_steps": 0}, "num_steps: expected at least 1, got 0"),
        ({"batch_size": -3}, "batch_size: expected at least 1, got -3"),
        ({"learning_rate": 0.0}, "learning_rate: expected a number above 0, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a number above 0, got nan"),
        ({"learning_rate": float("inf")}, "learning_rate: expected a number above 0, got inf"),
        ({"weight_decay": -0.1}, "weight_decay: expected at least 0, got -0.1"),
        ({"warmup_steps": 100}, r"warmup_steps: expected 0\.\.99, got 100"),
        ({"warmup_steps": -1}, r"warmup_steps: expected 0\.\.99, got -1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm: expected a number above 0, got 0"),
    ],
)
def test_what_cannot_be_trained_with_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BASE, **fields)


def test_every_field_of_an_optimization_is_read(recording, recipes):
    recorded = recording(Optimization)
    optimization = recorded(**dataclasses.asdict(WARM))
    recipe = dataclasses.replace(recipes["reversal"], optimization=optimization)
    recorded.read = set()
    model = WIRINGS["encoder-decoder"].model(recipe.config, rngs=nnx.Rngs(0))
    Trainer(model, recipe.loss, optimization)
    next(dispatches(recipe, 0))
    assert {field.name for field in dataclasses.fields(Optimization)} <= recorded.read


def test_token_losses_are_cross_entropies_in_nats():
    logits = jnp.log(jnp.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]]))
    got = token_losses(logits, jnp.array([[1, 1]]))
    np.testing.assert_allclose(got, -np.log([[0.25, 0.8]]), rtol=1e-5)


def test_an_objective_is_the_mean_over_what_counts_alone():
    values = jnp.array([[1.0, 2.0, 30.0]])
    assert float(counted(values, jnp.array([[1.0, 1.0, 0.0]])).mean) == 1.5
    assert float(counted(values, jnp.zeros((1, 3))).mean) == 0

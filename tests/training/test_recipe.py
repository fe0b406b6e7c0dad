import ast
import dataclasses
import inspect

import jax
import numpy as np
import pytest

from training.recipe import smoothed_losses

NAMES = ["masked-lm", "reversal", "perceiver", "causal-lm"]


def assert_equal(expected, got):
    assert expected.keys() == got.keys()
    jax.tree.map(np.testing.assert_array_equal, expected, got)


def differs(one, other):
    return any(one[key].shape != other[key].shape or (one[key] != other[key]).any() for key in one)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_a_function_of_seed_and_step_alone(recipes, name):
    recipe = recipes[name]
    expected = recipe.batch(3)
    recipe.batch(0)
    assert_equal(expected, recipe.batch(3))
    assert_equal(expected, dataclasses.replace(recipe).batch(3))
    assert differs(expected, recipe.batch(4))
    assert differs(expected, dataclasses.replace(recipe, seed=1).batch(3))


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_a_recipe_is_read_by_it(recipes, name):
    """No dead knobs: ``self.field`` stands somewhere in the class."""
    recipe = recipes[name]
    tree = ast.parse(inspect.getsource(type(recipe)))
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    assert {field.name for field in dataclasses.fields(recipe)} - read == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_how_its_bundle_is_called_and_limited(recipes, name):
    identity = recipes[name].identity()
    assert identity.name == name
    assert 0 <= identity.limits["min_len"] <= identity.limits["max_len"]
    assert identity.task["name"]
    assert identity.corpus["name"]


def test_smoothed_losses_are_means_of_the_last_ones_before_each_step():
    losses = [float(step) for step in range(1, 11)]
    assert smoothed_losses(losses, (5, 10), 3) == {"5": 4.0, "10": 9.0}


def test_early_steps_are_smoothed_over_what_there_is():
    assert smoothed_losses([2.0, 4.0], (2,), 50) == {"2": 3.0}


def test_steps_that_were_not_reached_are_left_out():
    assert smoothed_losses([2.0, 4.0], (1, 500), 50) == {"1": 2.0}

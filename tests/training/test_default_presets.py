"""The presets that train what ships: any length, masks of every style, nothing held out is seen."""

import dataclasses
import inspect
import re

import numpy as np
import pytest

from training.causal_lm_ragged import RaggedCausalLMRecipe
from training.corpus import Corpus
from training.masked_lm_ragged import RaggedMaskedLMRecipe
from training.perceiver import HELD_OUT, PerceiverRecipe
from training.step import jitted
from training.text_windows import BOOK_HELD_OUT

RECIPES = {
    "masked-lm": RaggedMaskedLMRecipe,
    "causal-lm": RaggedCausalLMRecipe,
    "perceiver": PerceiverRecipe,
}
STRETCHES = {
    "masked-lm": BOOK_HELD_OUT,
    "causal-lm": BOOK_HELD_OUT,
    "perceiver": (HELD_OUT.start, HELD_OUT.stop),
}
OTHERS_FROM = 1_000_000
ALL = pytest.mark.parametrize("name", RECIPES)


def counting(size, first=0):
    return Corpus(np.arange(first, first + size, dtype=np.int32), "0" * 64, f"from {first}")


@pytest.fixture(scope="module")
def defaults():
    """Each over texts whose tokens say where they stand."""
    book = counting(170_000)
    others = (counting(50_000, OTHERS_FROM), counting(50_000, 2 * OTHERS_FROM))
    return {name: recipe.default(book, others) for name, recipe in RECIPES.items()}


@pytest.fixture(scope="module")
def batches(defaults):
    def of(name):
        recipe = defaults[name]
        steps = range(0, 150 * recipe.steps_per_bucket, recipe.steps_per_bucket)
        return [recipe.batch(step) for step in steps]

    return of


@ALL
def test_no_training_window_touches_what_is_validated(batches, name):
    first, end = STRETCHES[name]
    for batch in batches(name):
        tokens = batch["targets"]
        assert not ((tokens >= first) & (tokens < end)).any()
        # Nor does one leap over it: each row is one piece.
        assert (np.diff(tokens, axis=1) == 1).all()


@ALL
def test_lengths_go_from_1_to_the_longest(defaults, batches, name):
    lengths = np.concatenate([batch["lengths"] for batch in batches(name)])
    assert lengths.min() == 1
    assert lengths.max() > 0.9 * max(defaults[name].buckets)
    assert max(defaults[name].buckets) == {"perceiver": 8192}.get(name, 128)


@pytest.mark.parametrize(
    ("name", "share"), [("masked-lm", 0.8), ("causal-lm", 0.8), ("perceiver", 0.5)]
)
def test_the_rows_are_from_the_book_and_the_others_in_equal_parts(batches, name, share):
    starts = np.concatenate([batch["targets"][:, 0] for batch in batches(name)])
    shares = [np.mean(starts // OTHERS_FROM == source) for source in range(3)]
    assert shares == pytest.approx([share, (1 - share) / 2, (1 - share) / 2], abs=0.05)


@ALL
def test_steps_of_one_dispatch_are_of_one_shape(defaults, name):
    recipe = defaults[name]
    assert recipe.steps_per_bucket % recipe.optimization.steps_per_dispatch == 0


@ALL
def test_the_bundle_says_what_it_was_trained_on_and_what_not(defaults, name):
    corpus = defaults[name].identity().corpus
    assert corpus["held_out_characters"] == [list(STRETCHES[name])]
    assert [other["num_tokens"] for other in corpus["beside"]] == [50_000, 50_000]


def test_masked_characters_are_asked_for_and_others_are_as_they_are(defaults, batches):
    special = defaults["masked-lm"].config.special_id
    for batch in batches("masked-lm"):
        masked = batch["weights"] == 1
        assert set(np.unique(batch["weights"])) == {0, 1}
        assert (batch["inputs"][masked] == special).all()
        np.testing.assert_array_equal(batch["inputs"][~masked], batch["targets"][~masked])
        assert masked.any(axis=1).all()


@pytest.fixture(scope="module")
def debug(recipes):
    """The recipes for any length at debug sizes."""
    corpus = recipes["masked-lm"].corpus
    return {
        "masked-lm": RaggedMaskedLMRecipe.own_debug(
            corpus, recipes["masked-lm"].identity().vocabulary, "masked-lm"
        ),
        "causal-lm": RaggedCausalLMRecipe.own_debug(
            corpus, recipes["causal-lm"].identity().vocabulary, "causal-lm"
        ),
    }


@pytest.mark.parametrize("name", ["masked-lm", "causal-lm"])
def test_padding_does_not_change_the_loss(debug, tiny_models, name):
    batch = debug[name].batch(0)
    padding = np.arange(batch["targets"].shape[1])[None] >= batch["lengths"][:, None]
    assert padding.any()
    garbage = {
        key: np.where(padding, 3, values) if key in ("inputs", "targets") else values
        for key, values in batch.items()
    }
    loss = jitted(tiny_models[name], debug[name].loss)
    assert float(loss(garbage).mean) == pytest.approx(float(loss(batch).mean), abs=1e-6)
    assert float(loss(batch).num_counted) == (
        batch["weights"].sum() if name == "masked-lm" else batch["lengths"].sum()
    )


def test_another_seed_draws_other_buckets_and_windows(defaults):
    recipe = defaults["masked-lm"]
    other = dataclasses.replace(recipe, seed=1)
    sizes = [
        [r.batch(step)["targets"].shape for step in range(0, 1000, 50)] for r in (recipe, other)
    ]
    assert sizes[0] != sizes[1]


@ALL
def test_every_field_is_read_by_its_recipe(defaults, name):
    """No dead knobs: ``self.field`` stands somewhere in the class."""
    recipe = defaults[name]
    source = inspect.getsource(type(recipe))
    fields = {field.name for field in dataclasses.fields(recipe)}
    assert fields == set(re.findall(r"\bself\.(\w+)", source)) & fields

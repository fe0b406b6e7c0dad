import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from models.perceiver import PerceiverAutoencoder
from training.corpus import Corpus
from training.perceiver import HELD_OUT, PerceiverRecipe, fidelity
from training.ragged import draw_starts
from training.step import jitted
from training.text_windows import without

# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5
NUM_TOKENS = 170_000
STEPS = range(60)
BOOK_BUCKETS = PerceiverRecipe.book(Corpus(np.zeros(1, np.int32), "", "")).buckets


@pytest.fixture(scope="module")
def recipe(recipes):
    return recipes["perceiver"]


@pytest.fixture(scope="module")
def counting():
    """A corpus whose tokens are their own positions, so that a window shows where it lies."""
    return Corpus(np.arange(NUM_TOKENS, dtype=np.int32), "", "counting")


@pytest.fixture(scope="module")
def book(counting):
    return PerceiverRecipe.book(counting)


@pytest.fixture(scope="module")
def batches(book):
    return [book.batch(step) for step in STEPS]


class Copyist(PerceiverAutoencoder):
    """Gives every character back that it sees, and <unk> for those that are hidden."""

    def __call__(self, tokens, lengths):
        return jax.nn.one_hot(tokens, 28)


def test_the_book_preset_has_the_published_sizes(book):
    config = book.config
    assert (config.num_latents, config.embed_dim) == (64, 256)
    assert (config.num_heads, config.num_layers, config.max_input_len) == (4, 2, 8192)
    assert len(book.buckets) == len(book.bucket_weights)


def test_every_bucket_is_drawn_and_holds_as_many_characters(book, batches):
    sizes = {batch["inputs"].shape[1] for batch in batches}
    assert sizes == set(book.buckets)
    budget = book.optimization.batch_size * max(book.buckets)
    assert {batch["inputs"].size for batch in batches} == {budget}


def test_lengths_lie_within_their_bucket(book, batches):
    """The shortest bucket goes down to 1; the others begin where the one before ends."""
    for batch in batches:
        size, lengths = batch["inputs"].shape[1], batch["lengths"]
        assert lengths.dtype == np.int32
        assert lengths.max() <= size
        assert lengths.min() >= (1 if size == min(book.buckets) else size // 2 + 1)
    shortest = np.concatenate(
        [batch["lengths"] for batch in batches if batch["inputs"].shape[1] == min(book.buckets)]
    )
    assert (shortest.min(), shortest.max()) == (1, min(book.buckets))


def test_15_percent_of_the_characters_are_hidden_and_all_are_asked_for(book, batches):
    mask_id = book.config.mask_id
    num_hidden = num_shown = 0
    for batch in batches:
        hidden = batch["inputs"] != batch["targets"]
        assert (batch["inputs"][hidden] == mask_id).all()
        num_hidden += hidden.sum()
        num_shown += (~hidden).sum()
    total = num_hidden + num_shown
    assert abs(num_hidden / total - 0.15) < BOUND * np.sqrt(0.15 * 0.85 / total)


class Exhaustive(np.random.Generator):
    """Draws every number there is, one a row."""

    def integers(self, low, high, rows):
        return np.arange(low, high)


@pytest.mark.parametrize("size", [1, *BOOK_BUCKETS])
def test_no_training_window_can_touch_the_held_out_stretch(counting, size):
    held_out = without(counting, (HELD_OUT.start, HELD_OUT.stop))
    starts = draw_starts(Exhaustive(np.random.PCG64(0)), held_out, size, 0)
    assert len(np.unique(starts)) == len(starts)
    ends = starts + size
    assert ((ends <= HELD_OUT.start) | (starts >= HELD_OUT.stop)).all()
    assert (starts.min(), ends.max()) == (0, NUM_TOKENS)
    # Every window that fits on either side is there.
    assert len(starts) == NUM_TOKENS - (HELD_OUT.stop - HELD_OUT.start) - 2 * (size - 1)


def test_no_training_batch_holds_a_held_out_character(batches):
    seen = np.concatenate([batch["targets"].ravel() for batch in batches])
    assert not ((seen >= HELD_OUT.start) & (seen < HELD_OUT.stop)).any()
    assert (seen >= HELD_OUT.stop).any()


def test_padding_does_not_change_the_loss(recipe, perceiver):
    batch = recipe.batch(0)
    padding = np.arange(batch["inputs"].shape[1])[None] >= batch["lengths"][:, None]
    assert padding.any()
    garbage = {
        "inputs": np.where(padding, 3, batch["inputs"]),
        "targets": np.where(padding, 7, batch["targets"]),
        "lengths": batch["lengths"],
    }
    loss = jitted(perceiver, recipe.loss)
    assert float(loss(garbage).mean) == pytest.approx(float(loss(batch).mean), abs=1e-6)


def test_loss_counts_hidden_and_visible_characters_alike(recipe):
    """Of a copyist: what it sees costs one price, what is hidden another, padding nothing."""
    batch = recipe.batch(0)
    real = np.arange(batch["inputs"].shape[1])[None] < batch["lengths"][:, None]
    hidden = (batch["inputs"] != batch["targets"])[real]
    seen = np.log(np.e + 27) - 1
    expected = np.where(hidden, np.log(28), seen).mean()
    loss = jitted(Copyist(recipe.config, rngs=nnx.Rngs(0)), recipe.loss)(batch)
    assert float(loss.mean) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [64, 100])
def test_fidelity_tells_visible_from_hidden_characters(recipe, size):
    held_out = recipe.corpus.tokens[HELD_OUT]
    copyist = Copyist(recipe.config, rngs=nnx.Rngs(0))
    assert fidelity(copyist, held_out, size) == {"visible": 1.0, "hidden": 0.0}


def test_fidelity_hides_the_same_characters_every_time(recipe, perceiver):
    held_out = recipe.corpus.tokens[HELD_OUT]
    assert fidelity(perceiver, held_out, 64) == fidelity(perceiver, held_out, 64)


def test_losses_are_reported_every_400_steps(recipe):
    figures = recipe.training_figures([1.0] * 950)
    assert figures == {"loss_at_step": {"400": 1.0, "800": 1.0}}


def test_bucket_weights_say_how_often_each_bucket_is_drawn(book):
    only = dataclasses.replace(book, bucket_weights=(0, 0, 1, 0, 0, 0))
    assert {only.batch(step)["inputs"].shape[1] for step in range(5)} == {128}

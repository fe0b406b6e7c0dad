import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.perceiver import PerceiverAutoencoder, Summary
from training.retrieval import OFFSET, PASSAGE, found_first, most_passages, retrieval_figures

NUM_PASSAGES = 6


class Counting(PerceiverAutoencoder):
    """Latents whose mean is how often each symbol comes up."""

    def encode(self, tokens, lengths):
        return Summary(jax.nn.one_hot(tokens, 28), jnp.zeros((1, 1, 1, 1)))


class Constant(PerceiverAutoencoder):
    """Latents that are the same whatever the text."""

    def encode(self, tokens, lengths):
        return Summary(jnp.ones((*tokens.shape, 4)), jnp.zeros((1, 1, 1, 1)))


@pytest.fixture(scope="module")
def config(recipes):
    return recipes["perceiver"].config


@pytest.fixture(scope="module")
def passages():
    """A text each of whose stretches keeps to two letters of its own, one in either half."""
    stride = PASSAGE + OFFSET
    tokens = np.repeat(np.arange(NUM_PASSAGES, dtype=np.int32) * 2, stride)
    for first in range(0, tokens.size, stride):
        tokens[first + PASSAGE // 2 : first + stride] += 1
    return np.concatenate([tokens, np.zeros(OFFSET, np.int32)])


def test_the_same_text_at_an_offset_is_found_by_what_is_in_it(config, passages):
    figures = retrieval_figures(Counting(config, rngs=nnx.Rngs(0)), passages, NUM_PASSAGES)
    assert figures["same_text_at_an_offset_first"] == 1.0
    # The halves have no letter in common.
    assert figures["other_half_first"] <= 1 / NUM_PASSAGES
    assert figures["by_chance"] == 1 / NUM_PASSAGES
    assert (figures["num_passages"], figures["passage_length"]) == (NUM_PASSAGES, PASSAGE)


def test_latents_that_are_all_alike_find_one_of_all(config, passages):
    figures = retrieval_figures(Constant(config, rngs=nnx.Rngs(0)), passages, NUM_PASSAGES)
    assert figures["same_text_at_an_offset_first"] == pytest.approx(1 / NUM_PASSAGES)


def test_more_passages_than_a_text_has_are_refused(config, passages):
    model = Constant(config, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="expected at least 25616 characters for 100 passages"):
        retrieval_figures(model, passages, 100)


def test_texts_find_their_own_copy_first_and_nothing_of_a_shuffle():
    vectors = np.eye(6)
    assert found_first(vectors, vectors) == 1.0
    assert found_first(vectors, np.roll(vectors, 1, axis=0)) == 0.0


def test_passages_do_not_overlap():
    assert most_passages(500 * PASSAGE + OFFSET) == 500
    assert most_passages(10) == 0

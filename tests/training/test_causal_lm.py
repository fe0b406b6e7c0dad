import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.decoder import CausalLanguageModel
from training.causal_lm import CausalLMRecipe, vocabulary
from training.corpus import Corpus
from training.masked_lm import MaskedLMRecipe
from training.step import jitted

# Sums of a few hundred float32 numbers, taken in another order.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def recipe(recipes):
    return recipes["causal-lm"]


class Repeater(CausalLanguageModel):
    """Is all but sure that the next character is the one before it."""

    def __call__(self, tokens, lengths):
        return 20.0 * jax.nn.one_hot(tokens, 28)


def test_the_book_preset_has_the_sizes_of_the_masked_recipe_in_fewer_steps():
    corpus = Corpus(np.zeros(1, np.int32), "", "")
    causal, masked = CausalLMRecipe.book(corpus), MaskedLMRecipe.book(corpus)
    assert causal.config == masked.config
    assert causal.optimization.batch_size == masked.optimization.batch_size
    assert causal.optimization.num_steps < masked.optimization.num_steps


def test_loss_is_the_mean_cross_entropy_behind_bos(recipe, causal_lm):
    targets = recipe.batch(0)["targets"]
    bos = np.full((len(targets), 1), vocabulary.special_id("<bos>"), np.int32)
    inputs = np.concatenate([bos, targets[:, :-1]], axis=1)
    lengths = np.full(len(targets), 64, np.int32)
    logits = jitted(causal_lm, CausalLanguageModel.__call__)(inputs, lengths)
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    expected = -np.take_along_axis(log_probs, targets[..., None], axis=-1).mean()
    loss = jitted(causal_lm, recipe.loss)({"targets": targets})
    assert float(loss.mean) == pytest.approx(expected, rel=TOLERANCE)


def test_evaluation_measures_what_is_known_of_a_repeater(recipe):
    tokens = recipe.windows.validation()
    repeated = tokens[:, 1:] == tokens[:, :-1]
    figures = recipe.evaluate(Repeater(recipe.config, rngs=nnx.Rngs(0)))
    # Of <bos>, which is no symbol, it makes equal scores; the first symbol is <unk>, never asked.
    assert figures["accuracy"] == pytest.approx(repeated.sum() / tokens.size)
    by_position = figures["validation_loss_by_position"]
    assert by_position[0] == pytest.approx(np.log(28), rel=TOLERANCE)
    sure = float(jnp.log(jnp.exp(20.0) + 27) - 20)
    expected = [sure + 20 * (1 - share) for share in repeated.mean(axis=0)]
    assert by_position[1:] == pytest.approx(expected, rel=TOLERANCE)
    assert figures["validation_loss_at"] == {
        "position_0": by_position[0],
        "position_63": by_position[63],
        "interior_mean": pytest.approx(np.mean(by_position[16:48])),
    }

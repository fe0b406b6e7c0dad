import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.encoder import MaskedLanguageModel
from training.corpus import Corpus
from training.masked_lm import PROBE, PROBE_POSITIONS, MaskedLMRecipe, probes, vocabulary
from training.masked_lm_ragged import RaggedMaskedLMRecipe
from training.step import counted, jitted, token_losses

# Sums of a few hundred float32 numbers, taken in another order.
TOLERANCE = 1e-4
# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5


@pytest.fixture(scope="module")
def recipe(recipes):
    return recipes["masked-lm"]


class Guesser(MaskedLanguageModel):
    """Believes in the same probabilities everywhere, whatever it sees."""

    def __call__(self, tokens, lengths):
        return jnp.broadcast_to(self.log_probs.get_value(), (*tokens.shape, 28))


@pytest.fixture(scope="module")
def guesser(recipe):
    model = Guesser(recipe.config, rngs=nnx.Rngs(0))
    counts = np.bincount(recipe.windows.validation().ravel(), minlength=28)
    frequencies = (counts + 1e-3) / (counts + 1e-3).sum()
    model.log_probs = nnx.Variable(jnp.log(jnp.asarray(frequencies, jnp.float32)))
    return model, frequencies


def test_the_book_preset_is_the_published_recipe():
    recipe = MaskedLMRecipe.book(Corpus(np.zeros(1, np.int32), "", ""))
    config, optimization = recipe.config, recipe.optimization
    assert (config.embed_dim, config.num_heads, config.num_layers) == (128, 4, 4)
    assert (config.max_seq_len, config.vocab_size) == (64, 28)
    assert (optimization.num_steps, optimization.batch_size) == (2000, 64)
    assert (optimization.learning_rate, optimization.weight_decay) == (1e-3, 0)
    assert (recipe.mask_rate, recipe.num_passes) == (0.15, 5)


def test_a_batch_masks_15_percent_and_asks_for_those(recipe):
    recipe = dataclasses.replace(
        recipe, optimization=dataclasses.replace(recipe.optimization, batch_size=500)
    )
    batch = recipe.batch(0)
    masked = batch["weights"] == 1
    assert (batch["inputs"][masked] == vocabulary.special_id("<mask>")).all()
    np.testing.assert_array_equal(batch["inputs"][~masked], batch["targets"][~masked])
    assert set(np.unique(batch["weights"])) == {0, 1}
    deviation = np.sqrt(0.15 * 0.85 / masked.size)
    assert abs(masked.mean() - 0.15) < BOUND * deviation


def test_masks_are_fresh_at_every_step(recipe):
    assert (recipe.batch(0)["weights"] != recipe.batch(1)["weights"]).any()


def test_loss_is_the_mean_cross_entropy_of_masked_characters_alone(recipe, masked_lm):
    batch = recipe.batch(0)
    rows = len(batch["inputs"])
    lengths = np.full(rows, 64, np.int32)
    predict = jitted(masked_lm, MaskedLanguageModel.predict)
    probs = np.asarray(predict(batch["inputs"], lengths)[0])
    of_targets = np.take_along_axis(probs, batch["targets"][..., None], axis=-1)[..., 0]
    expected = -np.log(of_targets)[batch["weights"] == 1].mean()
    loss = jitted(masked_lm, recipe.loss)
    assert float(loss(batch).mean) == pytest.approx(expected, rel=TOLERANCE)
    elsewhere = np.where(batch["weights"] == 1, batch["targets"], 5)
    assert float(loss({**batch, "targets": elsewhere}).mean) == float(loss(batch).mean)


@pytest.mark.parametrize("ragged", [False, True])
def test_asking_only_where_characters_are_masked_gives_the_gradient_of_asking_everywhere(
    recipe, masked_lm, ragged
):
    if ragged:
        recipe = RaggedMaskedLMRecipe.own_debug(recipe.corpus, vocabulary, "any")
    batch = recipe.batch(0)
    assert batch["positions"].shape[1] < batch["inputs"].shape[1]
    graph, params = nnx.split(masked_lm, nnx.Param)

    def everywhere(model, batch):
        rows, size = batch["inputs"].shape
        logits = model(batch["inputs"], batch.get("lengths", jnp.full(rows, size)))
        return counted(token_losses(logits, batch["targets"]), batch["weights"])

    def gradient(loss):
        of_params = jax.value_and_grad(
            lambda params, batch: loss(nnx.merge(graph, params), batch)[0]
        )
        return jax.jit(of_params)(params, batch)

    expected, got = gradient(everywhere), gradient(recipe.loss)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected[1]))
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(other, one, rtol=TOLERANCE, atol=TOLERANCE * scale)


def test_evaluation_measures_what_is_known_of_a_guesser(recipe, guesser):
    """Guessing by frequency: accuracy is that of the commonest symbol, loss is the entropy."""
    model, frequencies = guesser
    figures = recipe.evaluate(model)
    num_masked = 0.15 * 3_000 * 64
    deviation = BOUND * np.sqrt(0.25 / num_masked)
    assert figures["masked_accuracy"] == pytest.approx(frequencies.max(), abs=deviation)
    entropy = -(frequencies * np.log(frequencies)).sum()
    assert figures["validation_loss"] == pytest.approx(entropy, abs=0.05)
    by_position = figures["validation_loss_by_position"]
    assert len(by_position) == 64
    assert figures["validation_loss_at"] == {
        "position_0": by_position[0],
        "position_63": by_position[63],
        "interior_mean": pytest.approx(np.mean(by_position[16:48])),
    }


def test_the_probes_are_the_books(masked_lm):
    assert len(PROBE) == 64
    texts = [probe["text"] for probe in probes(masked_lm)]
    assert texts == [
        "the time <mask>raveller for so it will be convenient to speak of him ",
        "the time trave<mask>ler for so it will be convenient to speak of him ",
        "the time traveller for so it w<mask>ll be convenient to speak of him ",
    ]
    assert [PROBE[position] for position in PROBE_POSITIONS] == ["t", "l", "i"]


def test_a_probe_gives_the_three_likeliest_symbols_in_order(masked_lm):
    tokens = vocabulary.encode(PROBE)
    tokens[14] = vocabulary.special_id("<mask>")
    predict = jitted(masked_lm, MaskedLanguageModel.predict)
    probs = np.asarray(predict(tokens[None], np.array([64], np.int32))[0])[0, 14]
    order = np.argsort(-probs)[:3]
    top = probes(masked_lm)[1]["top"]
    assert [symbol for symbol, _ in top] == [vocabulary.symbols[index] for index in order]
    assert [share for _, share in top] == pytest.approx(probs[order].tolist(), abs=1e-6)

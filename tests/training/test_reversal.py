import jax
import numpy as np
import pytest

from models.encoder_decoder import EncoderDecoder
from training.reversal import (
    ALPHABET,
    LENGTH,
    ReversalRecipe,
    alignment,
    decode,
    draw_strings,
    vocabulary,
)
from training.step import jitted

# Sums of a few hundred float32 numbers, taken in another order.
TOLERANCE = 1e-4
# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5


@pytest.fixture(scope="module")
def recipe(recipes):
    return recipes["reversal"]


def test_the_book_preset_is_the_published_recipe():
    recipe = ReversalRecipe.book()
    config, optimization = recipe.config, recipe.optimization
    assert (config.embed_dim, config.num_heads, config.vocab_size) == (128, 4, 17)
    assert (config.num_encoder_layers, config.num_decoder_layers, config.max_len) == (1, 1, 12)
    assert vocabulary.tokens[config.bos_id] == "<bos>"
    assert config.eos_id is None
    assert (optimization.num_steps, optimization.batch_size) == (600, 128)
    assert (optimization.learning_rate, optimization.weight_decay) == (1e-3, 0)


def test_strings_are_12_letters_out_of_16_and_equally_likely():
    strings = draw_strings((0, 1), 2_000)
    assert strings.shape == (2_000, LENGTH) == (2_000, 12)
    assert strings.dtype == np.int32
    shares = np.bincount(strings.ravel(), minlength=16) / strings.size
    assert len(shares) == len(ALPHABET) == 16
    deviation = np.sqrt(1 / 16 * 15 / 16 / strings.size)
    assert (np.abs(shares - 1 / 16) < BOUND * deviation).all()


def test_loss_asks_for_the_string_reversed_behind_bos(recipe, encoder_decoder):
    source = recipe.batch(0)["source"]
    target = source[:, ::-1]
    bos = np.full((len(source), 1), recipe.config.bos_id, np.int32)
    inputs = np.concatenate([bos, target[:, :-1]], axis=1)
    lengths = np.full(len(source), LENGTH, np.int32)
    forward = jitted(encoder_decoder, EncoderDecoder.__call__)
    log_probs = np.asarray(jax.nn.log_softmax(forward(source, lengths, inputs, lengths)[0]))
    expected = -np.take_along_axis(log_probs, target[..., None], axis=-1).mean()
    loss = jitted(encoder_decoder, recipe.loss)({"source": source})
    assert float(loss.mean) == pytest.approx(expected, rel=TOLERANCE)


def test_strings_are_decoded_in_full(encoder_decoder):
    decoded = decode(encoder_decoder, draw_strings((0, 2), 4))
    np.testing.assert_array_equal(decoded.lengths, [LENGTH] * 4)


def test_evaluation_strings_are_fresh(recipe):
    """No training batch draws the strings of the evaluation."""
    evaluated = {tuple(row) for row in draw_strings((recipe.seed, 1_000_003), 1_000)}
    trained = {tuple(row) for step in range(100) for row in recipe.batch(step)["source"]}
    assert not evaluated & trained


def test_a_perfect_anti_diagonal_is_aligned_completely():
    perfect = np.broadcast_to(np.eye(LENGTH)[::-1], (2, 4, LENGTH, LENGTH))
    assert alignment(perfect) == (1.0, 1.0)


def test_alignment_is_of_the_heads_average():
    """Each of two heads is right on half of the rows with weight 0.6; their mean is on 0.3."""
    truth = np.eye(4)[::-1]
    first, second = np.zeros((4, 4)), np.zeros((4, 4))
    first[:2], second[2:] = 0.6 * truth[:2], 0.6 * truth[2:]
    assert alignment(np.stack([first, second])[None]) == pytest.approx((1.0, 0.3))


def test_the_diagonal_is_not_aligned_with_a_reversal():
    diagonal = np.broadcast_to(np.eye(4), (1, 1, 4, 4))
    assert alignment(diagonal) == (0.0, 0.0)


def test_a_quarter_of_the_rows_wrong_is_a_quarter_less():
    weights = np.eye(4)[::-1].copy()
    weights[0] = [1, 0, 0, 0]
    assert alignment(weights[None, None]) == (0.75, 0.75)

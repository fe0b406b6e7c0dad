import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.encoder import MaskedLanguageModel
from training.step import jitted

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
SIZE, WIDER = 10, 16
LENGTHS = np.array([10, 7, 1, 4], np.int32)


@pytest.fixture(scope="module")
def predict(masked_lm):
    return jitted(masked_lm, MaskedLanguageModel.predict)


@pytest.fixture(scope="module")
def tokens(masked_lm):
    """Random symbols, some of them masked, with as much garbage behind each row's length."""
    count = masked_lm.config.vocab_size + 1
    return np.random.default_rng(0).integers(0, count, (len(LENGTHS), WIDER), dtype=np.int32)


def rows(outputs):
    """What a batch of outputs says of each row's own positions."""
    probs, weights = (np.asarray(output) for output in outputs)
    return [
        (probs[row, :length], weights[row, :, :, :length, :length])
        for row, length in enumerate(LENGTHS[: len(probs)])
    ]


def assert_same(expected, got):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=TOLERANCE), expected, got)


def test_padding_does_not_change_an_answer(predict, tokens):
    assert_same(rows(predict(tokens[:, :SIZE], LENGTHS)), rows(predict(tokens, LENGTHS)))


def test_what_the_padding_holds_does_not_change_an_answer(predict, tokens):
    garbage = np.where(np.arange(WIDER)[None] < LENGTHS[:, None], tokens, 5)
    assert (garbage != tokens).any()
    assert_same(rows(predict(tokens, LENGTHS)), rows(predict(garbage, LENGTHS)))


def test_a_batch_of_one_equals_a_batch_of_many(predict, tokens):
    together = rows(predict(tokens, LENGTHS))
    for row, expected in enumerate(together):
        probs, weights = predict(tokens[row : row + 1], LENGTHS[row : row + 1])
        length = LENGTHS[row]
        assert_same(expected, (probs[0, :length], weights[0, :, :, :length, :length]))


def test_probabilities_and_weights_sum_to_one(predict, tokens, masked_lm):
    probs, weights = predict(tokens, LENGTHS)
    config = masked_lm.config
    assert probs.shape == (len(LENGTHS), WIDER, config.vocab_size)
    assert weights.shape == (len(LENGTHS), config.num_layers, config.num_heads, WIDER, WIDER)
    np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=TOLERANCE)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=TOLERANCE)


def test_padding_gets_no_weight(predict, tokens):
    weights = np.asarray(predict(tokens, LENGTHS)[1])
    for row, length in enumerate(LENGTHS):
        assert (weights[row, ..., length:] == 0).all()


def test_the_encoder_sees_both_sides(predict, tokens):
    """Changing the last or the first token changes what stands in the middle."""
    expected = np.asarray(predict(tokens, LENGTHS)[0])[0, 5]
    for position in (0, LENGTHS[0] - 1):
        changed = tokens.copy()
        changed[0, position] = (changed[0, position] + 1) % 27
        assert np.abs(np.asarray(predict(changed, LENGTHS)[0])[0, 5] - expected).max() > TOLERANCE


def test_the_mask_has_an_embedding_but_is_never_an_answer(masked_lm):
    config = masked_lm.config
    assert masked_lm.encoder.token_embedding.num_embeddings == config.vocab_size + 1
    assert config.special_id == config.vocab_size


def test_the_head_is_tied_to_the_token_embedding(masked_lm):
    states = jax.random.normal(jax.random.key(0), (2, 3, masked_lm.config.embed_dim))
    table = np.asarray(masked_lm.encoder.token_embedding.embedding[...])
    expected = np.asarray(states) @ table[: masked_lm.config.vocab_size].T
    got = jitted(masked_lm, lambda model, states: model.encoder.head(states))(states)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


def test_predict_is_the_softmax_of_the_logits(masked_lm, predict, tokens):
    logits = jitted(masked_lm, MaskedLanguageModel.__call__)(tokens, LENGTHS)
    expected = jax.nn.softmax(logits, axis=-1)
    np.testing.assert_allclose(predict(tokens, LENGTHS)[0], expected, atol=TOLERANCE)


def test_positions_matter(predict, masked_lm):
    """The same token everywhere still gives each position an answer of its own."""
    tokens = jnp.full((len(LENGTHS), WIDER), 3, jnp.int32)
    probs = np.asarray(predict(tokens, jnp.full(len(LENGTHS), WIDER, jnp.int32))[0])[0]
    assert np.abs(probs[0] - probs[1:]).max(axis=-1).min() > TOLERANCE

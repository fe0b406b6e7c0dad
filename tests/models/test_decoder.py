import numpy as np
import pytest
from flax import nnx

from models.blocks import TransformerConfig
from models.decoder import CausalLanguageModel
from training.step import jitted

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
SIZE, WIDER = 6, 12
LENGTHS = np.array([6, 1, 4], np.int32)
CONFIG = TransformerConfig(vocab_size=7, embed_dim=16, num_heads=2, num_layers=2, max_seq_len=WIDER)


@pytest.fixture(scope="module")
def model():
    """A model whose answers differ by position, because its embeddings are large."""
    model = CausalLanguageModel(CONFIG, rngs=nnx.Rngs(0))
    for table, factor in ((model.token_embedding, 10.0), (model.position_embedding, 50.0)):
        table.embedding[...] = table.embedding[...] * factor
    return model


@pytest.fixture(scope="module")
def forward(model):
    return jitted(model, CausalLanguageModel.__call__)


@pytest.fixture(scope="module")
def prompts():
    """Prompts behind <bos>, with garbage behind each row's length."""
    tokens = np.random.default_rng(0).integers(0, 8, (len(LENGTHS), WIDER), dtype=np.int32)
    tokens[:, 0] = CONFIG.special_id
    return tokens


def assert_same(expected, got):
    np.testing.assert_allclose(expected, got, atol=TOLERANCE)


def test_padding_does_not_change_an_answer(forward, prompts):
    short, wide = forward(prompts[:, :SIZE], LENGTHS), forward(prompts, LENGTHS)
    for row, length in enumerate(LENGTHS):
        assert_same(short[row, :length], wide[row, :length])


def test_a_batch_of_one_equals_a_batch_of_many(forward, prompts):
    together = forward(prompts, LENGTHS)
    for row, length in enumerate(LENGTHS):
        alone = forward(prompts[row : row + 1], LENGTHS[row : row + 1])
        assert_same(together[row, :length], alone[0, :length])


def test_no_output_depends_on_the_future(forward, prompts):
    full = np.full(len(LENGTHS), WIDER, np.int32)
    expected = np.asarray(forward(prompts, full))
    for position in (1, 5, WIDER - 1):
        changed = prompts.copy()
        changed[:, position:] = (changed[:, position:] + 1) % CONFIG.vocab_size
        got = np.asarray(forward(changed, full))
        assert_same(expected[:, :position], got[:, :position])
        assert (np.abs(expected - got)[:, position].max(axis=-1) > TOLERANCE).all()


def test_every_output_depends_on_the_past(forward, prompts):
    full = np.full(len(LENGTHS), WIDER, np.int32)
    changed = prompts.copy()
    changed[:, 1] = (changed[:, 1] + 1) % CONFIG.vocab_size
    change = np.abs(np.asarray(forward(prompts, full)) - np.asarray(forward(changed, full)))
    assert (change[:, 1:].max(axis=-1) > TOLERANCE).all()

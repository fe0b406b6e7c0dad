import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.encoder import MaskedLanguageModel
from training.context import Meter, by_side, held_out_windows, span_masked
from training.corpus import Corpus
from training.text_windows import BOOK_HELD_OUT, NUM_TRAIN, NUM_VALIDATION, TextWindows, without


class Neighbour(MaskedLanguageModel):
    """Sure that every symbol is one more than the one before it, and the first one is 0."""

    def __call__(self, tokens, lengths):
        before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        wanted = (before + 1)[..., None] == jnp.arange(28)[None, None]
        return 20.0 * wanted.astype(jnp.float32)


@pytest.fixture(scope="module")
def meter(recipes):
    return Meter(Neighbour(recipes["masked-lm"].config, rngs=nnx.Rngs(0)))


def rising(size):
    """Windows whose symbols rise by one from left to right."""
    return np.tile(np.arange(size, dtype=np.int32) % 28, (3, 1))


def test_the_books_windows_are_those_of_its_held_out_stretch():
    corpus = Corpus(np.arange(120_000, dtype=np.int32), "", "")
    found = held_out_windows(without(corpus, BOOK_HELD_OUT), 64, NUM_VALIDATION)
    np.testing.assert_array_equal(found, TextWindows(corpus, 0).validation())
    assert (NUM_TRAIN, found.max() + 1) == BOOK_HELD_OUT


def test_windows_are_spread_over_all_held_out_stretches_and_leave_none():
    corpus = Corpus(np.arange(1000, dtype=np.int32), "", "", ((100, 200), (700, 740), (900, 905)))
    found = held_out_windows(corpus, 10, 20)
    assert len(found) == 20
    starts = found[:, 0]
    assert (starts.min(), starts.max()) == (100, 730)
    assert all((100 <= start <= 190) or (700 <= start <= 730) for start in starts)
    assert held_out_windows(corpus, 101, 20).shape == (0, 101)


@pytest.mark.parametrize("span", [1, 4, 8])
def test_one_span_of_every_window_is_masked(span):
    tokens, masked = span_masked(rising(16), span, 0)
    assert tokens.shape == masked.shape
    for row in masked:
        positions = np.flatnonzero(row)
        assert len(positions) == span
        assert positions[-1] - positions[0] == span - 1


@pytest.mark.parametrize("size", [1, 16, 28, 64])
def test_a_meter_counts_masked_positions_alone_whatever_the_width(meter, size):
    masked = np.zeros((3, size), bool)
    masked[:, -1] = True
    tokens = rising(size)
    tokens[0, -1] = 27 if size != 28 else 5
    figures = meter(tokens, masked)
    assert figures["accuracy"] == pytest.approx(2 / 3)
    # Wrong by 20 nats in one of three.
    assert figures["loss"] == pytest.approx(20 / 3, abs=0.1)


def test_one_side_is_cut_so_that_the_mask_is_its_last_or_first(meter):
    """The neighbour to the left is all that this model needs, and the right side has none."""
    figures = by_side(meter, rising(20))
    assert [figures[side]["accuracy"] for side in ("both", "left", "right")] == [1.0, 1.0, 0.0]

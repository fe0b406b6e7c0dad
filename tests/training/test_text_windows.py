import numpy as np
import pytest

from training.corpus import Corpus
from training.text_windows import NUM_TRAIN, NUM_VALIDATION, WINDOW, TextWindows, draw_masks

# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5
STEPS_PER_EPOCH = 10
BATCH = NUM_TRAIN // STEPS_PER_EPOCH


@pytest.fixture(scope="module")
def counting():
    """A corpus whose tokens are their own positions, so that a window shows where it lies."""
    return Corpus(np.arange(120_000, dtype=np.int32), "", "counting")


def starts(windows, epoch):
    steps = range(epoch * STEPS_PER_EPOCH, (epoch + 1) * STEPS_PER_EPOCH)
    return np.concatenate([windows.train(step, BATCH)[:, 0] for step in steps])


def test_the_split_is_the_books():
    assert (WINDOW, NUM_TRAIN, NUM_VALIDATION) == (64, 100_000, 3_000)


def test_every_epoch_is_another_permutation_of_all_training_windows(counting):
    windows = TextWindows(counting, 0)
    first, second = starts(windows, 0), starts(windows, 1)
    for epoch in (first, second):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(NUM_TRAIN))
    assert (first == second).mean() < 0.01


def test_an_epoch_may_end_within_a_batch(counting):
    windows = TextWindows(counting, 0)
    step = (NUM_TRAIN - 1) // 64
    batch = windows.train(step, 64)[:, 0]
    left = NUM_TRAIN - step * 64
    assert 0 < left < 64
    np.testing.assert_array_equal(batch[:left], starts(windows, 0)[-left:])
    np.testing.assert_array_equal(batch[left:], starts(windows, 1)[: 64 - left])


def test_windows_are_64_characters_in_a_row(counting):
    batch = TextWindows(counting, 0).train(3, 8)
    np.testing.assert_array_equal(batch - batch[:, :1], np.tile(np.arange(WINDOW), (8, 1)))


def test_validation_windows_are_the_next_3000_in_order(counting):
    validation = TextWindows(counting, 0).validation()
    assert validation.shape == (NUM_VALIDATION, WINDOW)
    np.testing.assert_array_equal(validation[:, 0], np.arange(NUM_TRAIN, NUM_TRAIN + 3_000))


def test_another_seed_is_another_order_with_the_same_validation(counting):
    one, other = TextWindows(counting, 0), TextWindows(counting, 1)
    assert (one.train(0, 64) != other.train(0, 64)).any()
    np.testing.assert_array_equal(one.validation(), other.validation())


def test_masks_hide_the_stated_share_and_leave_the_rest_alone():
    tokens = np.random.default_rng(0).integers(0, 28, (500, 64), dtype=np.int32)
    inputs, masked = draw_masks(np.random.default_rng(1), tokens, 0.15, 28)
    assert inputs.dtype == np.int32
    assert (inputs[masked] == 28).all()
    np.testing.assert_array_equal(inputs[~masked], tokens[~masked])
    deviation = np.sqrt(0.15 * 0.85 / tokens.size)
    assert abs(masked.mean() - 0.15) < BOUND * deviation

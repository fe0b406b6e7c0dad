import jax.numpy as jnp
import numpy as np

from models.masks import causal_mask, combine_masks, padding_mask

# The ragged batch that the book prints: sequence 0 has 3 of 5 source and 3 of 4 target tokens.
SOURCE_LENGTHS = jnp.array([3, 5])
TARGET_LENGTHS = jnp.array([3, 4])
SOURCE_SIZE, TARGET_SIZE = 5, 4


def grid(mask, queries):
    """Sequence 0 of a mask as the book prints it, for that many queries."""
    rows = np.broadcast_to(np.asarray(mask)[0], (queries, mask.shape[-1]))
    return [" ".join(str(int(cell)) for cell in row) for row in rows]


def test_encoder_self_attention_is_the_printed_grid():
    mask = padding_mask(SOURCE_LENGTHS, SOURCE_SIZE)
    assert grid(mask, SOURCE_SIZE) == ["1 1 1 0 0"] * 5


def test_decoder_self_attention_is_the_printed_grid():
    mask = combine_masks(causal_mask(TARGET_SIZE), padding_mask(TARGET_LENGTHS, TARGET_SIZE))
    assert grid(mask, TARGET_SIZE) == ["1 0 0 0", "1 1 0 0", "1 1 1 0", "1 1 1 0"]


def test_cross_attention_is_the_printed_grid():
    mask = padding_mask(SOURCE_LENGTHS, SOURCE_SIZE)
    assert grid(mask, TARGET_SIZE) == ["1 1 1 0 0"] * 4


def test_a_full_row_is_masked_by_nothing_but_causality():
    mask = combine_masks(causal_mask(TARGET_SIZE), padding_mask(TARGET_LENGTHS, TARGET_SIZE))
    np.testing.assert_array_equal(mask[1], np.tri(TARGET_SIZE, dtype=bool))


def test_masks_are_boolean_and_broadcast_over_batch_and_queries():
    assert padding_mask(SOURCE_LENGTHS, SOURCE_SIZE).shape == (2, 1, SOURCE_SIZE)
    assert causal_mask(TARGET_SIZE).shape == (1, TARGET_SIZE, TARGET_SIZE)
    assert causal_mask(TARGET_SIZE).dtype == padding_mask(SOURCE_LENGTHS, 5).dtype == bool


def test_combining_keeps_only_what_every_mask_keeps():
    masks = [jnp.array([[row]]) for row in ([True, True, False], [True, False, True])]
    np.testing.assert_array_equal(combine_masks(*masks), [[[True, False, False]]])


def test_a_length_of_zero_or_past_the_end_keeps_nothing_or_everything():
    mask = padding_mask(jnp.array([0, 9]), SOURCE_SIZE)[:, 0]
    np.testing.assert_array_equal(mask, [[False] * 5, [True] * 5])

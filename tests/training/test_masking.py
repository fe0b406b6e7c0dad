import numpy as np
import pytest

from training.masking import MAX_SPAN, STYLES, asked_positions, draw_mixed_masks, num_asked

ROWS, SIZE = 2000, 64
# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5


def only(style):
    return tuple(float(other == style) for other in STYLES)


def drawn(weights, lengths=None, size=SIZE):
    lengths = np.full(ROWS, size, np.int32) if lengths is None else lengths
    return draw_mixed_masks(np.random.default_rng(0), lengths, size, weights)


def runs_of(row):
    """The lengths of the runs of True in a row."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row, [0]])))
    return edges[1::2] - edges[::2]


@pytest.mark.parametrize(("style", "rate"), [(0, 0.15), (1, 0.30)])
def test_single_positions_are_masked_at_the_rate_of_their_style(style, rate):
    masked = drawn(only(style))
    assert abs(masked.mean() - rate) < BOUND * np.sqrt(rate * (1 - rate) / masked.size)


def test_spans_are_of_2_to_8_positions_where_they_stand_alone():
    lengths = [run for row in drawn(only(2)) for run in runs_of(row)]
    # Spans that touch are longer, one that the row's end cuts off may be shorter.
    assert set(range(2, MAX_SPAN + 1)) <= set(lengths)
    assert np.mean(np.array(lengths) == 1) < 0.05
    assert np.mean(np.array(lengths) > MAX_SPAN) < 0.2


def test_edges_are_masked_at_one_end_or_both_and_half_of_them_as_single_positions():
    masked = drawn(only(3))
    first, last = masked[:, 0], masked[:, -1]
    assert (first | last).all()
    # A third at each end alone, were there no single masks beside.
    assert 0.25 < (first & ~last).mean() < 1 / 3
    assert 0.25 < (~first & last).mean() < 1 / 3
    alone = (first & ~masked[:, 1])[first].mean()
    assert 0.3 < alone < 0.6


@pytest.mark.parametrize("style", STYLES)
def test_no_padding_is_masked_and_no_row_is_left_without_a_mask(style):
    lengths = np.random.default_rng(1).integers(1, SIZE + 1, ROWS, dtype=np.int32)
    masked = drawn(only(style), lengths)
    assert masked.any(axis=1).all()
    assert not masked[np.arange(SIZE)[None] >= lengths[:, None]].any()


@pytest.mark.parametrize("style", STYLES)
def test_a_row_of_one_character_is_masked_whole(style):
    assert (
        drawn(only(style), np.ones(20, np.int32), 4).tolist() == [[True, False, False, False]] * 20
    )


def test_styles_come_up_as_often_as_their_weights_say():
    """A row of one whose edges alone are masked, by another style than edges, is rare."""
    both = drawn((0.5, 0.0, 0.0, 0.5))
    ends = (both[:, 0] | both[:, -1]).mean()
    expected = 0.5 + 0.5 * (1 - 0.85**2)
    assert abs(ends - expected) < BOUND * np.sqrt(expected * (1 - expected) / ROWS)


@pytest.mark.parametrize(("size", "rate", "width"), [(64, 0.15, 24), (128, 0.3, 72), (16, 0.3, 16)])
def test_room_for_the_masked_positions_follows_from_size_and_rate(size, rate, width):
    assert num_asked(size, rate) == width


def test_every_masked_position_is_asked_once_and_first_in_order():
    masked = drawn(only(0))
    asked = asked_positions(masked, 0.15)
    assert asked.shape == (ROWS, 24)
    for row, positions in zip(masked, asked, strict=True):
        wanted = np.flatnonzero(row)
        np.testing.assert_array_equal(positions[: wanted.size], wanted)
        assert len(set(positions)) == positions.size


def test_where_a_row_has_more_masks_than_room_every_position_is_asked():
    masked = np.zeros((2, SIZE), bool)
    masked[1, :25] = True
    asked = asked_positions(masked, 0.15)
    assert asked.shape == (2, SIZE)
    np.testing.assert_array_equal(np.sort(asked, axis=1), np.tile(np.arange(SIZE), (2, 1)))
    assert asked_positions(masked[:, ::-1], 0.15)[1, 0] == SIZE - 25

import numpy as np
import pytest

from training.corpus import Corpus, CorpusError
from training.ragged import (
    draw_bucket,
    draw_lengths,
    draw_starts,
    draw_windows,
    padding_share,
    stretches,
)
from training.text_mixture import TextMixture

BUCKETS = (4, 8, 16)
# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5


def counting(size, held_out=(), first=0, name="counting"):
    """A corpus whose tokens say where they stand."""
    return Corpus(np.arange(first, first + size, dtype=np.int32), "", name, held_out)


class Exhaustive(np.random.Generator):
    """Draws every number there is, one a row."""

    def integers(self, low, high, rows):
        return np.arange(low, high)


def exhaustive():
    return Exhaustive(np.random.PCG64(0))


@pytest.mark.parametrize("size", [1, 3, 10])
def test_every_window_that_touches_no_held_out_stretch_is_drawn(size):
    held_out = ((20, 25), (60, 70))
    starts = draw_starts(exhaustive(), counting(100, held_out), size, 0)
    allowed = [
        start
        for start in range(100 - size + 1)
        if all(start + size <= first or start >= end for first, end in held_out)
    ]
    assert starts.tolist() == allowed


def test_what_is_left_of_a_corpus_has_no_empty_pieces():
    assert stretches(counting(10, ((0, 2), (5, 10)))) == [(2, 5)]
    assert stretches(counting(10)) == [(0, 10)]


def test_a_corpus_without_such_a_window_is_told_with_what_it_has():
    with pytest.raises(CorpusError, match="counting: expected at least 9 characters in one piece"):
        draw_starts(np.random.default_rng(0), counting(12, ((4, 5),)), 9, 1)


def test_rows_come_from_each_corpus_as_often_as_its_weight_says():
    corpora = [(counting(50), 3.0), (counting(50, first=1000), 1.0)]
    tokens = draw_windows(np.random.default_rng(0), corpora, 5, 4000)
    from_second = (tokens[:, 0] >= 1000).mean()
    assert abs(from_second - 0.25) < BOUND * np.sqrt(0.25 * 0.75 / 4000)
    assert (np.diff(tokens, axis=1) == 1).all()


def test_lengths_of_a_bucket_begin_above_the_bucket_before():
    generator = np.random.default_rng(0)
    drawn = {size: draw_lengths(generator, BUCKETS, size, 500) for size in BUCKETS}
    bounds = {size: (lengths.min(), lengths.max()) for size, lengths in drawn.items()}
    assert bounds == {4: (1, 4), 8: (5, 8), 16: (9, 16)}


def test_buckets_are_drawn_by_weight():
    generator = np.random.default_rng(0)
    assert {draw_bucket(generator, BUCKETS, (0, 1, 0)) for _ in range(20)} == {8}


def test_padding_share_counts_what_no_row_has():
    assert padding_share({"targets": np.zeros((2, 8)), "lengths": np.array([8, 4])}) == 0.25
    assert padding_share({"targets": np.zeros((2, 8))}) == 0.0


def mixture(**changes):
    fields = {
        "main": counting(500, ((100, 150),)),
        "others": (counting(300, first=1000), counting(300, first=2000)),
        "main_share": 0.5,
        "buckets": BUCKETS,
        "bucket_weights": (1, 1, 1),
        "steps_per_bucket": 5,
        "seed": 0,
    }
    return TextMixture(**{**fields, **changes})


def drawn_at(mixture, step):
    return mixture.draw(np.random.default_rng((0, step)), step, 6)


def test_steps_of_a_group_share_their_bucket_and_every_bucket_comes_up():
    sizes = [drawn_at(mixture(), step)[0].shape[1] for step in range(100)]
    groups = [set(sizes[first : first + 5]) for first in range(0, 100, 5)]
    assert all(len(group) == 1 for group in groups)
    assert set.union(*groups) == set(BUCKETS)


def test_every_bucket_holds_as_many_characters():
    assert {drawn_at(mixture(), step)[0].size for step in range(0, 100, 5)} == {6 * 16}


def test_the_main_text_has_its_share_and_the_others_equal_parts():
    tokens = np.concatenate(
        [drawn_at(mixture(buckets=(4,), bucket_weights=(1,)), step)[0] for step in range(300)]
    )
    sources = tokens[:, 0] // 1000
    for source, share in ((0, 0.5), (1, 0.25), (2, 0.25)):
        deviation = np.sqrt(share * (1 - share) / len(sources))
        assert abs((sources == source).mean() - share) < BOUND * deviation


def test_a_mixture_of_one_text_is_that_text_without_what_is_held_out():
    tokens = np.concatenate([drawn_at(mixture(others=()), step)[0].ravel() for step in range(99)])
    assert tokens.max() < 500
    assert not ((tokens >= 100) & (tokens < 150)).any()

import math

import numpy as np
import pytest

from service.tasks import fill_mask
from service.tasks.masked_text import Span, window
from service.tasks.reading import Belief, windows
from tests.service import tiny

SIZE = 16


@pytest.mark.parametrize("num_tokens", [SIZE - 1, SIZE, SIZE + 1, 3 * SIZE])
def test_every_position_is_read_in_its_own_window(num_tokens):
    positions = [0, 7, num_tokens // 2, num_tokens - 1]
    wanted = windows(positions, num_tokens, SIZE)
    assert wanted.keys() == {window(position, num_tokens, SIZE) for position in positions}
    for position in positions:
        assert position in wanted[window(position, num_tokens, SIZE)]
    assert sum(map(len, wanted.values())) == len(positions)


def test_entropy_is_in_nats_and_what_is_impossible_adds_nothing():
    probs = np.array([0.5, 0.0, 0.25, 0.25, 0.0], np.float32)
    assert Belief(Span(0, 1), probs).entropy == pytest.approx(1.5 * math.log(2), abs=1e-12)
    assert Belief(Span(0, 1), np.array([1.0, 0.0], np.float32)).entropy == 0


def test_rows_on_trial_have_a_mask_for_which_something_is_computed():
    (card,) = (card for card in tiny.cards() if card.wiring == fill_mask.WIRING)
    program = next(p for p in fill_mask.programs(card) if p.name == fill_mask.PROGRAM)
    assert program.trial["positions"].tolist() == [0]
    assert (program.arrays(SIZE)["positions"] == -1).all()

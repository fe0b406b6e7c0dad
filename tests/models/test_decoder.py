import numpy as np

from tests.models.small_decoder import CONFIG, LENGTHS, SIZE, TOLERANCE, WIDER, assert_same


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

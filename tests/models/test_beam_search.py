import dataclasses
import itertools
from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx

from models.beam_search import beam_search
from models.decoding import decode
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
MAX_TARGET = 3
SYMBOLS = (0, 1)
ENDING = EncoderDecoderConfig(
    source_vocab_size=7,
    target_vocab_size=4,
    bos_id=3,
    eos_id=2,
    embed_dim=16,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_source_len=5,
    max_target_len=MAX_TARGET,
)
# Targets of 3 tokens, all of the same length; the end token is a symbol like the others.
ENDLESS = dataclasses.replace(ENDING, eos_id=None, target_vocab_size=3, bos_id=2)
ALL_TARGETS = [
    target for size in range(MAX_TARGET + 1) for target in itertools.product(SYMBOLS, repeat=size)
]
FULL_TARGETS = [target for target in ALL_TARGETS if len(target) == MAX_TARGET]
BATCH = 6
SOURCE = np.random.default_rng(0).integers(0, 7, (BATCH, 5), dtype=np.int32)
LENGTHS = np.array([5, 3, 4, 3, 5, 4], np.int32)
LIMITS = np.full(BATCH, 99, np.int32)


def build(config):
    """An untrained model that heeds position, last token and source enough."""
    model = EncoderDecoder(config, rngs=nnx.Rngs(1))
    scales = [(model.target_positions.embedding, 50), (model.target_embedding.embedding, 10)]
    scales += [(block.cross_attention.out_proj.kernel, 2) for block in model.decoder_blocks]
    for leaf, scale in scales:
        leaf[...] = leaf[...] * scale
    return model


@pytest.fixture(scope="module")
def ending():
    return build(ENDING)


@pytest.fixture(scope="module")
def endless():
    return build(ENDLESS)


@pytest.fixture(scope="module")
def search():
    """Beam search of BATCH rows, compiled once for each width of the beam."""
    compiled = {}

    def run(model, max_beams, num_beams=None, source=SOURCE, limits=LIMITS, rows=slice(None)):
        if max_beams not in compiled:
            compiled[max_beams] = jax.jit(partial(beam_search, max_beams=max_beams))
        beams = np.full(BATCH, max_beams, np.int32) if num_beams is None else num_beams
        inputs = [array[rows] for array in (source, LENGTHS, limits, beams)]
        return jax.tree.map(np.asarray, compiled[max_beams](model, *inputs))

    return run


@pytest.fixture(scope="module")
def greedy():
    return jax.jit(decode)


def log_probabilities(model):
    """That of each target of each row, by teacher forcing: (BATCH, targets), and of each token."""
    config = model.config
    targets = FULL_TARGETS if config.eos_id is None else ALL_TARGETS
    inputs = np.full((len(targets), MAX_TARGET), config.bos_id, np.int32)
    wanted = np.zeros((len(targets), MAX_TARGET), np.int32)
    counts = np.zeros((len(targets), MAX_TARGET), bool)
    for index, target in enumerate(targets):
        ended = (*target, config.eos_id)[:MAX_TARGET]
        wanted[index, : len(ended)] = ended
        counts[index, : len(ended)] = True
        inputs[index, 1 : len(ended)] = ended[:-1]
    forward = jax.jit(EncoderDecoder.__call__)
    full = np.full(len(targets), MAX_TARGET, np.int32)
    table = np.zeros((BATCH, len(targets)))
    for row in range(BATCH):
        source = np.repeat(SOURCE[row : row + 1], len(targets), axis=0)
        lengths = np.full(len(targets), LENGTHS[row], np.int32)
        logits = np.array(forward(model, source, lengths, inputs, full)[0])
        logits[..., config.bos_id] = -np.inf
        of_tokens = np.asarray(jax.nn.log_softmax(logits, axis=-1))
        chosen = np.take_along_axis(of_tokens, wanted[..., None], axis=-1)[..., 0]
        table[row] = np.where(counts, chosen, 0).sum(axis=1)
    return targets, table


@pytest.fixture(scope="module")
def truth(ending):
    return log_probabilities(ending)


@pytest.fixture(scope="module")
def endless_truth(endless):
    return log_probabilities(endless)


def targets_of(found, row):
    """The hypotheses that there are, as tuples, in the order that they came in."""
    return [
        tuple(tokens[:length].tolist())
        for tokens, length, score in zip(
            found.tokens[row], found.lengths[row], found.scores[row], strict=True
        )
        if np.isfinite(score)
    ]


def assert_in_order_of_the_truth(found, targets, table):
    """The targets found are all there are, the most probable first."""
    for row in range(BATCH):
        listed = targets_of(found, row)
        assert sorted(listed) == sorted(targets)
        scores = [table[row, targets.index(target)] for target in listed]
        np.testing.assert_allclose(found.scores[row], scores, atol=TOLERANCE)
        assert (np.diff(scores) < TOLERANCE).all()


def test_probabilities_of_all_targets_sum_to_one(truth, endless_truth):
    """The brute force that the other tests stand on misses none and counts none twice."""
    for _, table in (truth, endless_truth):
        np.testing.assert_allclose(np.exp(table).sum(axis=1), 1, rtol=TOLERANCE)


def test_a_beam_as_wide_as_all_targets_finds_them_all_in_order(search, ending, truth):
    targets, table = truth
    assert len(targets) == 15
    assert_in_order_of_the_truth(search(ending, 15), targets, table)


def test_without_an_end_token_all_targets_are_as_long_as_they_may_be(
    search, endless, endless_truth
):
    found = search(endless, 8)
    assert (found.lengths == MAX_TARGET).all()
    assert not found.has_ended.any()
    assert_in_order_of_the_truth(found, *endless_truth)


def test_the_most_probable_target_is_not_always_the_greedy_one(search, ending, truth):
    """Else a search would be for nothing, and the tests of it would show little."""
    targets, table = truth
    best = [targets[index] for index in table.argmax(axis=1)]
    assert [targets_of(search(ending, 15), row)[0] for row in range(BATCH)] == best
    assert [targets_of(search(ending, 1), row)[0] for row in range(BATCH)] != best


def test_a_beam_of_one_decodes_greedily(search, greedy, ending):
    found = search(ending, 1)
    expected = greedy(ending, SOURCE, LENGTHS, LIMITS)
    np.testing.assert_array_equal(found.tokens[:, 0], expected.tokens)
    np.testing.assert_array_equal(found.lengths[:, 0], expected.lengths)
    np.testing.assert_array_equal(found.has_ended[:, 0], expected.has_ended)
    np.testing.assert_allclose(found.log_probs[:, 0], expected.log_probs, atol=TOLERANCE)


def test_a_beam_of_one_decodes_greedily_without_an_end_token(search, greedy, endless):
    found = search(endless, 1)
    expected = greedy(endless, SOURCE, LENGTHS, LIMITS)
    np.testing.assert_array_equal(found.tokens[:, 0], expected.tokens)
    np.testing.assert_array_equal(found.lengths[:, 0], expected.lengths)


def test_scores_are_true_of_every_hypothesis_that_a_narrow_beam_finds(search, ending, truth):
    targets, table = truth
    found = search(ending, 3)
    for row in range(BATCH):
        listed = targets_of(found, row)
        assert len(set(listed)) == 3
        expected = [table[row, targets.index(target)] for target in listed]
        np.testing.assert_allclose(found.scores[row], expected, atol=TOLERANCE)
        assert (np.diff(found.scores[row]) <= 0).all()


def test_a_score_is_the_sum_of_its_log_probabilities_and_that_of_the_end(search, ending, truth):
    targets, table = truth
    found = search(ending, 15)
    without_end = found.log_probs.sum(axis=-1)
    np.testing.assert_allclose(
        without_end[~found.has_ended], found.scores[~found.has_ended], atol=TOLERANCE
    )
    assert found.has_ended.sum() == BATCH * 7, "all targets that are shorter than they may be"
    for row, beam in zip(*np.nonzero(found.has_ended), strict=True):
        target = tuple(found.tokens[row, beam, : found.lengths[row, beam]].tolist())
        longer = [table[row, i] for i, t in enumerate(targets) if t[: len(target)] == target]
        # What begins with the target has its probability, and one of these is that it ends here.
        prefix = np.logaddexp.reduce(longer)
        assert without_end[row, beam] == pytest.approx(prefix, abs=TOLERANCE)
        end = table[row, targets.index(target)] - prefix
        score = without_end[row, beam] + end
        assert found.scores[row, beam] == pytest.approx(score, abs=TOLERANCE)


def test_past_a_hypothesis_there_are_zeros(search, ending):
    found = search(ending, 15)
    past = np.arange(MAX_TARGET) >= found.lengths[..., None]
    assert past.any()
    assert not found.tokens[past].any()
    assert not found.log_probs[past].any()


def test_special_tokens_are_in_no_hypothesis(search, ending):
    found = search(ending, 15)
    assert set(np.unique(found.tokens)) == set(SYMBOLS)


def test_a_batch_of_one_equals_a_batch_of_many(search, ending):
    together = search(ending, 3)
    for row in range(BATCH):
        one = slice(row, row + 1)
        alone = search(ending, 3, rows=one)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_allclose(alone.scores[0], together.scores[row], atol=TOLERANCE)


def test_rows_with_beams_of_different_widths_share_a_batch(search, ending):
    """Each row is as with a beam of its own width for all; past that there is no hypothesis."""
    widths = np.array([3, 1, 2, 1, 3, 2], np.int32)
    mixed = search(ending, 3, num_beams=widths)
    for row, width in enumerate(widths):
        alone = search(ending, int(width))
        for part, expected in zip(mixed, alone, strict=True):
            np.testing.assert_allclose(part[row, :width], expected[row], atol=TOLERANCE)
        assert np.isneginf(mixed.scores[row, width:]).all()


def test_padding_of_the_source_changes_nothing(search, ending):
    padding = np.arange(SOURCE.shape[1])[None] >= LENGTHS[:, None]
    assert padding.any()
    spoiled = np.where(padding, (SOURCE + 1) % 7, SOURCE)
    expected, got = search(ending, 3), search(ending, 3, source=spoiled)
    jax.tree.map(np.testing.assert_array_equal, expected, got)


def test_each_row_has_a_limit_of_its_own(search, ending, truth):
    """What is cut by a limit is scored without an end; of a limit of 0 the empty target is left."""
    targets, table = truth
    limits = np.array([0, 1, 2, 3, 99, 1], np.int32)
    found = search(ending, 15, limits=limits)
    for row, limit in enumerate(np.minimum(limits, MAX_TARGET)):
        listed = targets_of(found, row)
        assert sorted(listed) == sorted(target for target in targets if len(target) <= limit)
        assert np.exp(found.scores[row]).sum() == pytest.approx(1, abs=TOLERANCE)
        cut = found.lengths[row] == limit
        real = np.isfinite(found.scores[row])
        np.testing.assert_array_equal(found.has_ended[row, real], ~cut[real])
        for target, score in zip(listed, found.scores[row], strict=False):
            begins = [table[row, i] for i, t in enumerate(targets) if t[: len(target)] == target]
            whole = [table[row, targets.index(target)]]
            expected = np.logaddexp.reduce(begins if len(target) == limit else whole)
            assert score == pytest.approx(expected, abs=TOLERANCE)


def test_where_nothing_may_come_the_empty_target_is_certain(search, ending):
    found = search(ending, 3, limits=np.zeros(BATCH, np.int32))
    np.testing.assert_array_equal(found.scores[:, 0], 0)
    assert np.isneginf(found.scores[:, 1:]).all()
    assert not found.lengths.any()
    assert not found.has_ended.any()


def test_nothing_is_nan_where_there_are_fewer_targets_than_beams(search, ending):
    for limit in range(3):
        found = search(ending, 15, limits=np.full(BATCH, limit, np.int32))
        assert np.isfinite(found.scores).sum() == BATCH * (2 ** (limit + 1) - 1)
        assert not any(np.isnan(part).any() for part in (found.scores, found.log_probs))

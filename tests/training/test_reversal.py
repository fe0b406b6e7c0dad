import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from models.decoding import Decoded
from models.encoder_decoder import EncoderDecoder
from models.vocabulary import BOS
from training import reversal
from training.loop import dispatches
from training.reversal import (
    MAX_LENGTH,
    PRINTABLE_ASCII,
    ReversalRecipe,
    alignment,
    backwards,
    draw_strings,
)
from training.step import jitted

# Sums of a few hundred float32 numbers, taken in another order.
TOLERANCE = 1e-4
# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5
# A step of each group of steps that are dispatched together, and so one of each drawn bucket.
NUM_GROUPS = 100


@pytest.fixture(scope="module")
def recipe(recipes):
    return recipes["reversal"]


@pytest.fixture(scope="module")
def ragged(recipe):
    """Strings of 1 to 12 letters for the model of the debug preset."""
    return dataclasses.replace(recipe, min_len=1, buckets=(6, 12), bucket_weights=(1.0, 1.0))


@pytest.fixture(scope="module")
def shipping():
    return ReversalRecipe.default()


@pytest.fixture(scope="module")
def shipping_batches(shipping):
    """A step of every group."""
    group = shipping.optimization.steps_per_dispatch
    return [shipping.batch(index * group) for index in range(NUM_GROUPS)]


def test_the_book_preset_is_the_published_recipe():
    recipe = ReversalRecipe.book()
    config, optimization = recipe.config, recipe.optimization
    assert (config.embed_dim, config.num_heads) == (128, 4)
    assert (config.source_vocab_size, config.target_vocab_size) == (17, 17)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (1, 1)
    assert (config.max_source_len, config.max_target_len, config.source_order) == (12, 12, "start")
    assert recipe.identity().vocabulary.tokens[config.bos_id] == BOS
    assert recipe.identity().limits == {"min_len": 12, "max_len": 12}
    assert config.eos_id is None
    assert (optimization.num_steps, optimization.batch_size) == (600, 128)
    assert (optimization.learning_rate, optimization.weight_decay) == (1e-3, 0)


@pytest.mark.parametrize(("seed", "step"), [(2, 0), (2, 599), (7, 3)])
def test_the_book_preset_draws_the_strings_that_it_always_drew(seed, step):
    """Whole rows of 12 letters, from the seed and the step alone."""
    batch = dataclasses.replace(ReversalRecipe.book(), seed=seed).batch(step)
    expected = np.random.default_rng((seed, step)).integers(0, 16, (128, 12), dtype=np.int32)
    np.testing.assert_array_equal(batch["source"], expected)
    np.testing.assert_array_equal(batch["targets"], expected[:, ::-1])
    assert (batch["lengths"] == 12).all()
    assert (batch["target_lengths"] == 12).all()


def test_letters_are_equally_likely():
    strings = draw_strings((0, 1), 16, 2_000, 12)
    assert strings.shape == (2_000, 12)
    assert strings.dtype == np.int32
    shares = np.bincount(strings.ravel(), minlength=16) / strings.size
    assert len(shares) == 16
    deviation = np.sqrt(1 / 16 * 15 / 16 / strings.size)
    assert (np.abs(shares - 1 / 16) < BOUND * deviation).all()


def test_the_preset_that_ships_reads_any_string_of_printable_ascii(shipping):
    identity = shipping.identity()
    assert identity.vocabulary.alphabet == PRINTABLE_ASCII
    assert len(PRINTABLE_ASCII) == 95
    assert PRINTABLE_ASCII.isascii()
    assert PRINTABLE_ASCII.isprintable()
    assert identity.limits == {"min_len": 1, "max_len": MAX_LENGTH}
    assert identity.config.max_source_len == identity.config.max_target_len == MAX_LENGTH == 128
    assert identity.config.source_order == "end"
    assert "1 to 128" in identity.corpus["name"]


def test_the_preset_that_ships_is_evaluated_on_lengths_of_all_sizes(shipping):
    lengths = shipping.evaluation_lengths
    assert (lengths[0], lengths[-1]) == (1, MAX_LENGTH)
    assert list(lengths) == sorted(lengths)


def test_the_preset_that_ships_sees_every_length_and_every_character(shipping_batches):
    lengths = np.concatenate([batch["lengths"] for batch in shipping_batches])
    assert set(lengths.tolist()) == set(range(1, MAX_LENGTH + 1))
    longest = max(shipping_batches, key=lambda batch: batch["source"].shape[1])
    assert set(np.unique(longest["source"])) == set(range(95))


def test_half_of_the_rows_and_more_have_the_longest_length_of_their_step(shipping_batches):
    for batch in shipping_batches:
        share = (batch["lengths"] == batch["source"].shape[1]).mean()
        assert share > 0.5 - BOUND * np.sqrt(0.25 / len(batch["lengths"]))
        assert share < 1


def test_buckets_are_drawn_as_often_as_their_weights_say(shipping, shipping_batches):
    drawn = [batch["source"].shape[1] for batch in shipping_batches]
    weights = np.array(shipping.bucket_weights)
    for bucket, share in zip(shipping.buckets, weights / weights.sum(), strict=True):
        deviation = np.sqrt(share * (1 - share) / NUM_GROUPS)
        assert abs(drawn.count(bucket) / NUM_GROUPS - share) < BOUND * deviation


def test_every_step_holds_as_many_positions_whatever_its_bucket(shipping, shipping_batches):
    size = shipping.optimization.batch_size * MAX_LENGTH
    assert {batch["source"].size for batch in shipping_batches} == {size}


def test_steps_that_are_dispatched_together_share_a_shape(ragged):
    optimization = dataclasses.replace(ragged.optimization, num_steps=12, steps_per_dispatch=3)
    recipe = dataclasses.replace(ragged, optimization=optimization)
    shapes = []
    for group in dispatches(recipe, 0):
        assert len(group) == 3
        shapes += {batch["source"].shape for batch in group}
    assert len(shapes) == 4
    assert set(shapes) == {(8, 12), (16, 6)}


def test_the_target_is_the_source_reversed_in_its_own_length(ragged):
    for step in range(8):
        batch = ragged.batch(step)
        assert len(set(batch["lengths"].tolist())) > 1
        np.testing.assert_array_equal(batch["lengths"], batch["target_lengths"])
        for row, length in enumerate(batch["lengths"]):
            source = batch["source"][row, :length].tolist()
            assert batch["targets"][row, :length].tolist() == source[::-1]
            assert batch["inputs"][row, :length].tolist() == [16, *source[:0:-1]]
            assert not batch["source"][row, length:].any()
            assert not batch["targets"][row, length:].any()


def test_backwards_twice_is_as_it_was():
    lengths = np.array([5, 1, 3], np.int32)
    rows = np.where(np.arange(5)[None] < lengths[:, None], np.arange(1, 16).reshape(3, 5), 0)
    assert backwards(rows, lengths).tolist() == [
        [5, 4, 3, 2, 1],
        [6, 0, 0, 0, 0],
        [13, 12, 11, 0, 0],
    ]
    np.testing.assert_array_equal(backwards(backwards(rows, lengths), lengths), rows)


def test_loss_asks_for_the_string_reversed_behind_bos(recipe, encoder_decoder):
    batch = recipe.batch(0)
    source = batch["source"]
    target = source[:, ::-1]
    bos = np.full((len(source), 1), recipe.config.bos_id, np.int32)
    inputs = np.concatenate([bos, target[:, :-1]], axis=1)
    lengths = np.full(len(source), 12, np.int32)
    forward = jitted(encoder_decoder, EncoderDecoder.__call__)
    log_probs = np.asarray(jax.nn.log_softmax(forward(source, lengths, inputs, lengths)[0]))
    expected = -np.take_along_axis(log_probs, target[..., None], axis=-1).mean()
    loss = jitted(encoder_decoder, recipe.loss)(batch)
    assert float(loss.mean) == pytest.approx(expected, rel=TOLERANCE)


def test_padding_counts_nothing_in_the_loss(ragged, encoder_decoder):
    batch = next(batch for batch in map(ragged.batch, range(99)) if len(batch["source"]) == 8)
    loss = jitted(encoder_decoder, ragged.loss)
    expected = loss(batch)
    assert float(expected.num_counted) == batch["lengths"].sum()
    padding = np.arange(12)[None] >= batch["lengths"][:, None]
    assert padding.any()
    spoiled = {name: np.where(padding, 7, batch[name]) for name in ("source", "inputs", "targets")}
    got = loss(batch | spoiled)
    assert float(got.total) == pytest.approx(float(expected.total), rel=TOLERANCE)


def test_evaluation_strings_are_fresh(recipe):
    """No training batch draws the strings of the evaluation."""
    evaluated = {tuple(row) for row in draw_strings((recipe.seed, 1_000_003, 12), 16, 1_000, 12)}
    trained = {tuple(row) for step in range(100) for row in recipe.batch(step)["source"]}
    assert not evaluated & trained


def oracle(model, source, lengths):
    """Reverses what begins with a letter of the first eight, and looks where it should for all."""
    size = source.shape[1]
    tokens = np.where(source[:, :1] < 8, source[:, ::-1], source)
    maps = np.broadcast_to(np.eye(size)[::-1], (len(source), 1, 2, size, size))
    return Decoded(tokens, lengths, np.zeros(source.shape), np.zeros(len(source), bool)), maps


@pytest.fixture
def known_answers(monkeypatch):
    """Decoding by ``oracle``, whatever the model."""
    monkeypatch.setattr(reversal, "jitted", lambda model, function: partial(function, model))
    monkeypatch.setattr(reversal, "decode_with_attention", oracle)


def test_figures_are_shares_of_all_strings_of_each_length(recipe, encoder_decoder, known_answers):
    some = dataclasses.replace(
        recipe, evaluation_lengths=(1, 5, 12), num_strings=250, num_aligned=120
    )
    figures = some.evaluate(encoder_decoder)
    assert (figures["num_strings"], figures["num_aligned"]) == (250, 120)
    assert list(figures["by_length"]) == ["1", "5", "12"]
    for length, found in figures["by_length"].items():
        strings = draw_strings((0, 1_000_003, int(length)), 16, 250, int(length))
        right = (strings[:, 0] < 8) | (strings == strings[:, ::-1]).all(axis=1)
        assert found["exact_match"] == pytest.approx(right.mean())
        assert (found["argmax_rate"], found["mean_weight"]) == (1.0, 1.0)


def test_attention_is_measured_on_as_many_strings_as_are_said(
    recipe, encoder_decoder, known_answers, monkeypatch
):
    """Whole batches and the part of one, each string counted once."""
    seen = []

    def note(weights):
        seen.append(len(weights))
        return 1.0 if len(seen) == 1 else 0.0, 0.5

    monkeypatch.setattr(reversal, "alignment", note)
    figures = dataclasses.replace(recipe, num_strings=250, num_aligned=120).evaluate(
        encoder_decoder
    )
    assert seen == [100, 20]
    assert figures["by_length"]["12"]["argmax_rate"] == pytest.approx(100 / 120)
    assert figures["by_length"]["12"]["mean_weight"] == pytest.approx(0.5)


def test_a_model_of_all_lengths_is_drawn_by_length(
    ragged, encoder_decoder, known_answers, tmp_path, assert_png
):
    some = dataclasses.replace(ragged, evaluation_lengths=(2, 12), num_strings=4, num_aligned=4)
    some.plot(encoder_decoder, some.evaluate(encoder_decoder), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"alignment.png", "by_length.png"}
    for path in tmp_path.iterdir():
        assert_png(path)


def test_a_perfect_anti_diagonal_is_aligned_completely():
    perfect = np.broadcast_to(np.eye(12)[::-1], (2, 4, 12, 12))
    assert alignment(perfect) == (1.0, 1.0)


def test_alignment_is_of_the_heads_average():
    """Each of two heads is right on half of the rows with weight 0.6; their mean is on 0.3."""
    truth = np.eye(4)[::-1]
    first, second = np.zeros((4, 4)), np.zeros((4, 4))
    first[:2], second[2:] = 0.6 * truth[:2], 0.6 * truth[2:]
    assert alignment(np.stack([first, second])[None]) == pytest.approx((1.0, 0.3))


def test_the_diagonal_is_not_aligned_with_a_reversal():
    diagonal = np.broadcast_to(np.eye(4), (1, 1, 4, 4))
    assert alignment(diagonal) == (0.0, 0.0)


def test_a_quarter_of_the_rows_wrong_is_a_quarter_less():
    weights = np.eye(4)[::-1].copy()
    weights[0] = [1, 0, 0, 0]
    assert alignment(weights[None, None]) == (0.75, 0.75)

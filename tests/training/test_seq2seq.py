import dataclasses
from collections import Counter

import jax
import numpy as np
import pytest
from flax import nnx

from models.encoder_decoder import EncoderDecoder
from training import seq2seq
from training.devices import data_mesh
from training.loop import dispatches
from training.pairs import PairsError, build_corpus, read_pairs
from training.seq2seq import BUCKETS, Seq2SeqRecipe, measure
from training.sequences import decode_all, error_rates
from training.step import Optimization, Trainer

# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5
# What a model that overfits is trained on, and for how long.
OVERFIT_PAIRS, OVERFIT_STEPS = 8, 150


def word(index):
    """A word of its own for each index, of 1 to 19 letters."""
    return f"{index:b}".translate({ord("0"): "a", ord("1"): "b"}) + "c" * (index % 3 * 6)


def lines(count):
    return "".join(f"{word(index)}\t{' '.join(word(index).upper())}\n" for index in range(count))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Words in lower case, and their letters in upper case with spaces between."""
    path = tmp_path_factory.mktemp("pairs") / "capitals.tsv"
    path.write_text(lines(120))
    return build_corpus(read_pairs(path), target_symbols="spaces")


@pytest.fixture(scope="module")
def recipe(corpus):
    return Seq2SeqRecipe.debug(corpus, "capitals")


@pytest.fixture(scope="module")
def model(recipe):
    return EncoderDecoder(recipe.config, rngs=nnx.Rngs(0))


def rows(batch):
    """The pairs of a batch as tuples of token ids, the target without its end."""
    return [
        (tuple(source[:length].tolist()), tuple(target[: size - 1].tolist()))
        for source, length, target, size in zip(
            *(batch[name] for name in ("source", "lengths", "targets", "target_lengths")),
            strict=True,
        )
    ]


def known(pairs):
    return [
        (tuple(source.tolist()), tuple(target.tolist()))
        for source, target in zip(pairs.sources, pairs.targets, strict=True)
    ]


def test_the_config_has_the_sizes_of_the_corpus(recipe, corpus):
    config = recipe.config
    assert config.source_vocab_size == len(corpus.source_vocabulary.tokens) == 3
    assert config.target_vocab_size == len(corpus.target_vocabulary.tokens) == 3 + 2
    assert corpus.target_vocabulary.tokens[config.bos_id] == "<bos>"
    assert corpus.target_vocabulary.tokens[config.eos_id] == "<eos>"
    longest = max(
        len(source) for side in (corpus.train, corpus.held_out) for source in side.sources
    )
    assert longest == 19
    assert config.max_source_len == config.max_target_len == 24


def test_a_target_of_the_longest_bucket_has_room_for_its_end(tmp_path):
    """Eight symbols and the end are nine, which is one more than the first bucket holds."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"w{index}\tabcdefgh\n" for index in range(99)))
    recipe = Seq2SeqRecipe.debug(build_corpus(read_pairs(path)), "any")
    assert BUCKETS[:2] == (8, 12)
    assert recipe.config.max_target_len == 12
    assert (recipe.batch(0)["target_lengths"] == 9).all()


def test_a_recipe_says_what_its_bundle_reads_and_writes(recipe, corpus):
    identity = recipe.identity()
    assert (identity.name, identity.wiring) == ("capitals", "encoder-decoder")
    assert identity.vocabulary == corpus.source_vocabulary
    assert identity.target_vocabulary == corpus.target_vocabulary
    assert identity.limits == {"min_len": 1, "max_len": 24}
    assert identity.corpus["num_pairs"] == 120


def test_a_preset_that_ships_trains_longer_and_with_noise(corpus, recipe):
    default = Seq2SeqRecipe.default(dataclasses.replace(corpus, train=larger(corpus.train)), "any")
    assert default.optimization.num_steps > recipe.optimization.num_steps
    assert default.input_noise > recipe.input_noise == 0
    assert default.config.embed_dim > recipe.config.embed_dim


def larger(pairs):
    return dataclasses.replace(pairs, sources=pairs.sources * 9, targets=pairs.targets * 9)


@pytest.mark.parametrize("count", [1, 7])
def test_fewer_pairs_than_a_batch_are_refused(recipe, corpus, count):
    few = dataclasses.replace(
        corpus.train, sources=corpus.train.sources[:count], targets=corpus.train.targets[:count]
    )
    with pytest.raises(PairsError) as caught:
        dataclasses.replace(recipe, corpus=dataclasses.replace(corpus, train=few))
    assert str(caught.value) == (
        "capitals.tsv: expected at least a batch of 8 pairs to train on, "
        f"got {count}; the rest is held out"
    )


def test_batches_hold_whole_pairs_that_are_not_held_out(recipe, corpus):
    train, held_out = set(known(corpus.train)), set(known(corpus.held_out))
    assert not train & held_out
    seen = {pair for step in range(300) for pair in rows(recipe.batch(step))}
    assert seen == train


def test_the_loss_asks_for_targets_and_their_end_and_for_no_padding(recipe, model):
    batch = recipe.batch(0)
    eos_id = recipe.config.eos_id
    for target, length in zip(batch["targets"], batch["target_lengths"], strict=True):
        assert target[length - 1] == eos_id
        assert eos_id not in target[: length - 1]
    objective = jax.jit(recipe.loss)(model, batch)
    assert float(objective.num_counted) == sum(len(target) + 1 for _, target in rows(batch))
    assert np.isfinite(float(objective.total))


def test_a_step_holds_as_many_symbols_whatever_its_bucket(recipe):
    shapes = {recipe.batch(step)["source"].shape for step in range(100)}
    assert shapes == {(8 * (24 // size), size) for size in (8, 12, 16, 24)}
    for shape in shapes:
        assert shape[0] * shape[1] <= 8 * 24


def test_a_pair_is_in_the_smallest_bucket_that_holds_its_source_target_and_end(recipe):
    for step in range(40):
        batch = recipe.batch(step)
        size = batch["source"].shape[1]
        smaller = max((bucket for bucket in BUCKETS if bucket < size), default=0)
        needed = np.maximum(batch["lengths"], batch["target_lengths"])
        assert ((smaller < needed) & (needed <= size)).all()


def test_steps_that_are_dispatched_together_share_a_bucket(recipe):
    optimization = dataclasses.replace(recipe.optimization, num_steps=24, steps_per_dispatch=3)
    groups = list(dispatches(dataclasses.replace(recipe, optimization=optimization), 0))
    assert [len(group) for group in groups] == [3] * 8
    assert len({group[0]["source"].shape for group in groups}) > 1


def test_every_pair_is_as_likely_as_any_other_whatever_its_bucket(recipe, corpus):
    """Over many steps, the draws of each bucket are as many as its share of the pairs.

    A step has all of its rows from one bucket, so buckets vary by steps, and pairs within them by
    rows.
    """
    num_steps = 4_000
    drawn, steps, num_rows = Counter(), Counter(), {}
    for step in range(num_steps):
        batch = recipe.batch(step)
        size = batch["source"].shape[1]
        steps[size] += 1
        num_rows[size] = len(batch["source"])
        drawn.update((size, pair) for pair in rows(batch))
    members = Counter(seq2seq._bucket(max(len(s), len(t) + 1)) for s, t in known(corpus.train))
    assert len(set(members.values())) > 1, "all buckets alike, so nothing was tested"
    weights = {size: count / num_rows[size] for size, count in members.items()}
    for size in members:
        expected = weights[size] / sum(weights.values())
        deviation = np.sqrt(expected * (1 - expected) / num_steps)
        assert abs(steps[size] / num_steps - expected) < BOUND * deviation
    # Rows a step times steps, over pairs, is then the same everywhere: how often each is seen.
    seen = {size: weights[size] * num_rows[size] / count for size, count in members.items()}
    assert len({round(often, 9) for often in seen.values()}) == 1
    for (size, _), count in drawn.items():
        mean = steps[size] * num_rows[size] / members[size]
        assert abs(count - mean) < BOUND * np.sqrt(mean)


def test_noise_replaces_its_share_of_the_decoders_inputs_and_nothing_else(recipe):
    noisy = dataclasses.replace(recipe, input_noise=0.5)
    changed, total, symbols = 0, 0, set()
    for step in range(40):
        clean, spoiled = recipe.batch(step), noisy.batch(step)
        assert clean.keys() == spoiled.keys()
        for name in clean.keys() - {"inputs"}:
            np.testing.assert_array_equal(clean[name], spoiled[name])
        assert (spoiled["inputs"][:, 0] == recipe.config.bos_id).all()
        assert spoiled["inputs"].dtype == np.int32
        real = np.arange(1, clean["inputs"].shape[1])[None] < clean["target_lengths"][:, None]
        before, after = clean["inputs"][:, 1:][real], spoiled["inputs"][:, 1:][real]
        changed, total = changed + np.sum(before != after), total + real.sum()
        symbols |= set(after[before != after].tolist())
    # One of three symbols is drawn, and one time in three it is the one that was there.
    share = 0.5 * 2 / 3
    assert abs(changed / total - share) < BOUND * np.sqrt(share * (1 - share) / total)
    assert symbols == set(range(3))


def test_without_noise_inputs_are_the_targets_one_step_before(recipe):
    batch = recipe.batch(0)
    np.testing.assert_array_equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])


@pytest.fixture(scope="module")
def overfitted(recipe, corpus):
    """The recipe's model, trained on few words of one bucket; the words, and its losses."""
    short = [index for index, source in enumerate(corpus.train.sources) if len(source) < 8]
    few = dataclasses.replace(
        corpus.train,
        sources=tuple(corpus.train.sources[index] for index in short[:OVERFIT_PAIRS]),
        targets=tuple(corpus.train.targets[index] for index in short[:OVERFIT_PAIRS]),
    )
    small = dataclasses.replace(recipe, corpus=dataclasses.replace(corpus, train=few))
    model = EncoderDecoder(recipe.config, rngs=nnx.Rngs(0))
    optimization = Optimization(num_steps=OVERFIT_STEPS, batch_size=8, learning_rate=1e-2)
    with jax.numpy_dtype_promotion("standard"):
        trainer = Trainer(model, small.loss, optimization, mesh=data_mesh(jax.devices()[:1]))
        losses = [float(trainer.run([small.batch(step)])[0]) for step in range(OVERFIT_STEPS)]
        return trainer.model, few, losses


def test_few_pairs_are_learned_by_heart(overfitted):
    """Down to the end of each target: decoding gives exactly what was trained on."""
    model, few, losses = overfitted
    assert losses[-1] < 0.1 * losses[0]
    outputs = decode_all(model, few.sources)
    assert [tuple(output) for output in outputs] == [tuple(target) for target in few.targets]


def test_what_is_learned_by_heart_is_measured_without_an_error(overfitted):
    model, few, _ = overfitted
    figures = measure(model, few)
    assert figures["num_sources"] == figures["num_pairs"] == OVERFIT_PAIRS
    nothing_wrong = {"sequence_error_rate": 0.0, "symbol_error_rate": 0.0}
    assert figures["greedy"] == figures["beam_4"] == nothing_wrong
    counts = Counter(len(source) for source in few.sources)
    assert list(figures["by_source_length"]) == [str(length) for length in sorted(counts)]
    for length, found in figures["by_source_length"].items():
        assert found == {"num_sources": counts[int(length)], **nothing_wrong}


def test_a_source_of_several_targets_is_measured_once_against_all(model, corpus, monkeypatch):
    sources = (*corpus.train.sources[:3], corpus.train.sources[0])
    targets = (*corpus.train.targets[:3], corpus.train.targets[9])
    pairs = dataclasses.replace(corpus.train, sources=sources, targets=targets)
    asked = []

    def answer(model, sources, *, num_beams=1):
        asked.append((len(sources), num_beams))
        return [corpus.train.targets[9], targets[1], np.zeros(1, np.int32)]

    monkeypatch.setattr(seq2seq, "decode_all", answer)
    figures = measure(model, pairs)
    assert asked == [(3, 1), (3, 4)]
    assert (figures["num_sources"], figures["num_pairs"]) == (3, 4)
    expected = error_rates(
        answer(model, sources), [[targets[0], targets[3]], [targets[1]], [targets[2]]]
    )
    assert figures["beam_4"] == expected
    assert 0 < expected["sequence_error_rate"] < 1


def test_figures_are_drawn(recipe, overfitted, tmp_path, assert_png, monkeypatch):
    model, few, _ = overfitted
    figures = {
        "by_source_length": {
            "3": {"num_sources": 1, **error_rates([few.targets[0]], [few.targets[:1]])}
        }
    }
    recipe.plot(model, figures, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"alignment.png", "errors_by_length.png"}
    for path in tmp_path.iterdir():
        assert_png(path)


def test_losses_are_reported_at_four_points_of_a_run(recipe):
    figures = recipe.training_figures([float(step) for step in range(1, 401)])
    assert list(figures["loss_at_step"]) == ["100", "200", "300", "400"]
    assert figures["loss_at_step"]["400"] == np.mean(range(351, 401))

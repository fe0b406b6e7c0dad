import json
import unicodedata

import numpy as np
import pytest

from models.vocabulary import MASK, UNKNOWN, Vocabulary
from training.corpus import CorpusError
from training.own_text import (
    MIN_COUNT,
    build_vocabulary,
    held_out_blocks,
    load_to_evaluate,
    load_to_train,
    read_vocabulary,
)
from training.ragged import stretches

LINE = "Ἄνδρα μοι ἔννεπε, Μοῦσα, πολύτροπον, ὃς μάλα πολλὰ\n"
TEXT = LINE * 300


@pytest.fixture
def write(tmp_path):
    """Writes a file; gives its path."""

    def to(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to


def trained_on(own):
    return own.corpus.describe()


def test_files_are_read_one_after_the_other_each_with_its_last_line_ended(write):
    paths = [write("a.txt", TEXT.removesuffix("\n")), write("b.txt", TEXT)]
    corpus, vocabulary = load_to_train(paths, "build", MASK)
    assert vocabulary.decode(corpus.tokens) == TEXT + TEXT
    assert corpus.name == "a.txt, b.txt"
    described = corpus.describe()
    assert [file["name"] for file in described["files"]] == ["a.txt", "b.txt"]
    assert described["num_unknown"] == 0


def test_decomposed_letters_are_composed_and_line_ends_are_line_feeds(write):
    odd = unicodedata.normalize("NFD", TEXT).replace("\n", "\r\n")
    corpus, vocabulary = load_to_train([write("a.txt", odd)], "build", MASK)
    assert vocabulary.normalization == "nfc"
    assert vocabulary.decode(corpus.tokens) == TEXT


def test_a_byte_order_mark_is_no_part_of_the_text(write):
    path = write("a.txt", b"\xef\xbb\xbf" + TEXT.encode())
    corpus, vocabulary = load_to_train([path], "build", MASK)
    assert vocabulary.decode(corpus.tokens) == TEXT


def test_the_vocabulary_has_case_punctuation_and_any_script(write):
    _, vocabulary = load_to_train([write("a.txt", TEXT)], "build", MASK)
    assert vocabulary.symbols[0] == UNKNOWN
    assert set(vocabulary.characters) == set(TEXT)
    assert vocabulary.specials == (MASK,)


def test_rare_characters_become_unk_and_are_named(write, caplog):
    caplog.set_level("INFO")
    rare = "й" * (MIN_COUNT - 1) + "ё" * MIN_COUNT
    corpus, vocabulary = load_to_train([write("a.txt", rare + TEXT)], "build", MASK)
    assert "й" not in vocabulary.symbols
    assert "ё" in vocabulary.symbols
    assert (corpus.tokens == 0).sum() == MIN_COUNT - 1
    assert corpus.describe()["num_unknown"] == MIN_COUNT - 1
    assert "are <unk>, among them 'й'" in caplog.text


def test_the_vocabulary_is_built_from_what_is_not_held_out():
    assert build_vocabulary("a" * MIN_COUNT + "b", MASK).characters == ("a",)


def test_characters_of_held_out_blocks_alone_are_unknown(write):
    size = len(TEXT)
    ((first, end),) = held_out_blocks(size)
    text = TEXT[:first] + "Ω" * (end - first) + TEXT[end:]
    corpus, vocabulary = load_to_train([write("a.txt", text)], "build", MASK)
    assert "Ω" not in vocabulary.symbols
    assert (corpus.tokens[first:end] == 0).all()


@pytest.mark.parametrize("size", [10_000, 50_000, 1_000_000, 20_000_000])
def test_one_part_in_twenty_is_held_out_in_blocks(size):
    blocks = held_out_blocks(size)
    lengths = {end - first for first, end in blocks}
    assert len(lengths) == 1
    assert sum(end - first for first, end in blocks) == pytest.approx(size / 20, abs=16)
    assert 1 <= len(blocks) <= 16
    assert len(blocks) == 1 or min(lengths) >= 1024
    assert all(0 <= first < end <= size for first, end in blocks)
    firsts = [first for first, _ in blocks]
    assert firsts == sorted(firsts)


def test_between_blocks_there_is_room_for_the_longest_windows(write):
    """What is left has pieces 19 times as long as the blocks are."""
    corpus, _ = load_to_train([write("a.txt", TEXT)], "build", MASK)
    pieces = [end - first for first, end in stretches(corpus)]
    blocks = [end - first for first, end in corpus.held_out]
    assert min(pieces) >= 19 * min(blocks)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fine\nalso fine\ncaf\xe9\n", "line 3: expected UTF-8, got the byte 0xE9"),
        (b"\xff\xfea\x00", "line 1: expected UTF-8, got the byte 0xFF"),
        (b"", "expected text, got an empty file"),
        (b" \n\n ", "expected text, got an empty file"),
    ],
)
def test_a_file_that_is_no_text_is_named_with_its_line(write, content, message):
    paths = [write("good.txt", TEXT), write("bad.txt", content)]
    with pytest.raises(CorpusError, match=r"bad\.txt") as caught:
        load_to_train(paths, "build", MASK)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CorpusError, match=r"expected a readable file, got .*no\.txt: No such file"):
        load_to_train([tmp_path / "no.txt"], "build", MASK)


def test_too_little_text_is_told_with_how_much_there_is(write):
    path = write("a.txt", LINE)
    with pytest.raises(CorpusError, match="expected at least 10000 characters in all, got 51 in"):
        load_to_train([path], "build", MASK)
    with pytest.raises(CorpusError, match="expected at least 1000 characters in all, got 1"):
        load_to_evaluate([path], Vocabulary.english_letters(MASK), {})


def test_a_vocabulary_is_taken_from_a_model_with_another_special(write):
    model = Vocabulary.english_letters("<bos>").to_json()
    path = write("model.json", json.dumps({"name": "x", "vocabulary": model}))
    assert read_vocabulary(path, MASK) == Vocabulary.english_letters(MASK)
    bare = write("bare.json", json.dumps(model))
    assert read_vocabulary(bare, MASK) == Vocabulary.english_letters(MASK)


def test_a_vocabulary_is_taken_from_the_characters_of_a_file(write):
    vocabulary = read_vocabulary(write("alphabet.txt", "λβδ\nδβ \n"), MASK)
    assert vocabulary.symbols == (UNKNOWN, " ", "β", "δ", "λ")
    assert vocabulary.normalization == "nfc"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"symbols": [], "normalization": "nfc"}'])
def test_json_that_gives_no_vocabulary_is_refused(write, content):
    with pytest.raises(CorpusError, match=r"vocabulary: .*v\.json: expected"):
        read_vocabulary(write("v.json", content), MASK)


def test_a_character_that_a_given_vocabulary_lacks_is_told_with_file_and_line(write):
    path = write("v.json", json.dumps({"symbols": sorted(set(LINE)), "normalization": "none"}))
    text = write("a.txt", LINE + "ω\n" + TEXT)
    with pytest.raises(CorpusError, match=r"a\.txt, line 2: expected symbols .* got 'ω'"):
        load_to_train([text], str(path), MASK)


def test_the_files_of_the_training_have_the_same_held_out_again(write):
    paths = [write("a.txt", TEXT), write("b.txt", TEXT + "ω\n")]
    own = load_to_train(paths, "build", MASK)
    again = load_to_evaluate(paths, own.vocabulary, trained_on(own))
    assert again.corpus.held_out == own.corpus.held_out
    np.testing.assert_array_equal(again.corpus.tokens, own.corpus.tokens)


def test_other_files_are_held_out_whole(write):
    own = load_to_train([write("a.txt", TEXT)], "build", MASK)
    other = load_to_evaluate([write("b.txt", TEXT + LINE)], own.vocabulary, trained_on(own))
    assert other.corpus.held_out == ((0, len(TEXT + LINE)),)


def test_part_of_what_was_trained_on_passes_for_neither(write):
    paths = [write("a.txt", TEXT), write("b.txt", TEXT + LINE)]
    own = load_to_train(paths, "build", MASK)
    for some in ([paths[1]], paths[::-1], [*paths, write("c.txt", LINE)]):
        with pytest.raises(CorpusError, match=r"the model was trained on that; .*: a\.txt, b\.txt"):
            load_to_evaluate(some, own.vocabulary, trained_on(own))

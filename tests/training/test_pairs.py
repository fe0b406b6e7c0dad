import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.vocabulary import BOS, EOS, Vocabulary
from training import pairs
from training.pairs import (
    Line,
    PairsError,
    build_corpus,
    build_vocabulary,
    encode_pairs,
    is_held_out,
    read_pairs,
)

# Standard deviations that a share of independent draws may be off; one in 10^6 is.
BOUND = 5


@pytest.fixture
def write(tmp_path):
    """Writes a file of pairs and gives its path."""

    def pairs_file(content):
        path = tmp_path / "pairs.tsv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return pairs_file


def columns(file):
    return [(line.source, line.target) for line in file.lines]


def many(count):
    return "".join(f"w{index}\tt{index % 7}\n" for index in range(count))


def test_a_line_is_a_source_and_a_target(write):
    file = read_pairs(write("cat\tK AE1 T\ndog\tD AO1 G\n"))
    assert file.lines == (Line(1, "cat", "K AE1 T"), Line(2, "dog", "D AO1 G"))
    assert file.sha256 == hashlib.sha256(b"cat\tK AE1 T\ndog\tD AO1 G\n").hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        b"a\tb\nc\td\n",
        b"a\tb\nc\td",
        b"a\tb\r\nc\td\r\n",
        b"a\tb\r\nc\td",
        b"a\tb\nc\td\r",
        b"\xef\xbb\xbfa\tb\nc\td\n",
        b"\xef\xbb\xbfa\tb\r\nc\td\r\n",
    ],
)
def test_a_byte_order_mark_and_line_ends_of_either_kind_are_no_part_of_a_line(write, content):
    assert columns(read_pairs(write(content))) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    "inner", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r", "\ufeff"]
)
def test_nothing_but_a_line_feed_ends_a_line(write, inner):
    file = read_pairs(write(f"a{inner}b\tc\nd\te\n"))
    assert columns(file) == [(f"a{inner}b", "c"), ("d", "e")]


def test_spaces_around_a_column_are_part_of_it(write):
    assert columns(read_pairs(write(" a \t b \n"))) == [(" a ", " b ")]


texts = st.text(
    st.characters(exclude_characters="\t\n\r\ufeff", exclude_categories=["Cs"]), min_size=1
)


@given(st.lists(st.tuples(texts, texts), min_size=1))
def test_any_text_without_tabs_and_line_ends_is_read_as_it_was_written(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    path.write_bytes("".join(f"{source}\t{target}\n" for source, target in rows).encode())
    assert columns(read_pairs(path)) == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": expected lines of two columns, got an empty file"),
        (b"\xef\xbb\xbf", ": expected lines of two columns, got an empty file"),
        (b"\n", ", line 1: expected two columns with a tab between, got an empty line"),
        (b"a\tb\n\nc\td\n", ", line 2: expected two columns with a tab between, got an empty line"),
        (b"a\tb\n\r\n", ", line 2: expected two columns with a tab between, got an empty line"),
        (b"a\tb\n\n", ", line 2: expected two columns with a tab between, got an empty line"),
        (b"a\tb\na b\n", ", line 2: expected two columns with a tab between, got 1"),
        (b"a\tb\tc\n", ", line 1: expected two columns with a tab between, got 3"),
        (b"a\tb\nc\td\n\tb\n", ", line 3: source: expected at least one symbol, got none"),
        (b"a\t\n", ", line 1: target: expected at least one symbol, got none"),
        (b"a\t\r\n", ", line 1: target: expected at least one symbol, got none"),
        (
            b"a\tb\nna\xefve\tx\n",
            ", line 2: expected UTF-8, got the byte 0xef at byte 3 of the line",
        ),
        (b"a\tb\xff\n", ", line 1: expected UTF-8, got the byte 0xff at byte 4 of the line"),
        (b"a\t\xc3\n", ", line 1: expected UTF-8, got the byte 0xc3 at byte 3 of the line"),
    ],
)
def test_a_file_that_is_no_file_of_pairs_is_refused_by_file_and_line(write, content, message):
    path = write(content)
    with pytest.raises(PairsError) as caught:
        read_pairs(path)
    assert str(caught.value) == f"{path}{message}"


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path):
    with pytest.raises(PairsError, match=r"nothing\.tsv: expected a readable file: No such file"):
        read_pairs(tmp_path / "nothing.tsv")
    with pytest.raises(PairsError, match=r"expected a readable file: Is a directory"):
        read_pairs(tmp_path)


def test_a_vocabulary_has_the_symbols_of_its_column_in_the_order_of_their_code_points(write):
    file = read_pairs(write("cab\tK AE1 B\nbé\tB K\n"))
    source = build_vocabulary(file, "source", "characters")
    assert (source.tokens, source.separator) == (("a", "b", "c", "é"), "")
    target = build_vocabulary(file, "target", "spaces", (BOS, EOS))
    assert (target.symbols, target.specials) == (("AE1", "B", "K"), (BOS, EOS))
    assert target.separator == " "


@pytest.mark.parametrize("line", ["K  T", " K", "K ", " ", "  "])
def test_two_spaces_where_symbols_are_between_spaces_are_refused_by_line(write, line):
    path = write(f"a\tK T\nb\t{line}\n")
    with pytest.raises(PairsError) as caught:
        build_vocabulary(read_pairs(path), "target", "spaces", (BOS, EOS))
    assert str(caught.value) == (
        f"{path}, line 2: target: expected symbols with one space between, "
        "none of them <unk> or <bos> or <eos>, got ''"
    )


@pytest.mark.parametrize(
    ("symbol", "specials"), [(BOS, (BOS, EOS)), (EOS, (BOS, EOS)), ("<unk>", ())]
)
def test_a_symbol_that_is_spelt_like_a_special_one_is_refused_by_line(write, symbol, specials):
    path = write(f"a\tK T\nb\tK {symbol}\n")
    with pytest.raises(PairsError, match=f"line 2: target: .* got '{symbol}'$"):
        build_vocabulary(read_pairs(path), "target", "spaces", specials)


def test_characters_may_spell_the_name_of_a_special_token(write):
    path = write(f"{BOS}\t{EOS}<unk>\n")
    vocabulary = build_vocabulary(read_pairs(path), "target", "characters", (BOS, EOS))
    assert "".join(vocabulary.symbols) == "".join(sorted(set(EOS + "<unk>")))


def test_a_corpus_has_every_line_once_on_one_side_or_the_other(write):
    file = read_pairs(write(many(300)))
    corpus = build_corpus(file)
    decoded = {
        (corpus.source_vocabulary.decode(source), corpus.target_vocabulary.decode(target))
        for side in (corpus.train, corpus.held_out)
        for source, target in zip(side.sources, side.targets, strict=True)
    }
    assert decoded == set(columns(file))
    assert len(corpus.train) + len(corpus.held_out) == 300


def test_sides_hold_their_lines_in_the_order_of_the_file(write):
    file = read_pairs(write(many(300)))
    corpus = build_corpus(file, held_out_share=0.3)
    for side, held_out in ((corpus.train, False), (corpus.held_out, True)):
        expected = [s for s, _ in columns(file) if is_held_out(s, 0.3) == held_out]
        assert [corpus.source_vocabulary.decode(source) for source in side.sources] == expected


def test_a_corpus_says_what_it_was_made_of(write):
    path = write(many(300))
    corpus = build_corpus(read_pairs(path))
    assert corpus.describe() == {
        "name": "pairs.tsv",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "num_pairs": 300,
        "num_held_out": len(corpus.held_out),
        "held_out_share": 0.1,
    }


def test_vocabularies_know_the_symbols_of_both_sides_of_a_corpus(write):
    """A symbol that only a held-out line has can be written down, if not learned."""
    held_out = next(f"w{index}" for index in range(99) if is_held_out(f"w{index}", 0.1))
    file = read_pairs(write(many(99).replace(f"{held_out}\t", f"{held_out}\té")))
    corpus = build_corpus(file)
    assert "é" in corpus.target_vocabulary.symbols
    index = corpus.target_vocabulary.symbols.index("é")
    assert any(index in target for target in corpus.held_out.targets)
    assert not any(index in target for target in corpus.train.targets)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_the_share_of_many_sources_that_is_held_out_is_as_asked(share):
    count = 20_000
    found = np.mean([is_held_out(f"source {index}", share) for index in range(count)])
    assert abs(found - share) < BOUND * np.sqrt(share * (1 - share) / count)


def test_what_is_held_out_depends_on_the_source_alone_and_never_changes():
    """Else a bundle could not be measured again on what it never saw."""
    held_out = [index for index in range(40) if is_held_out(f"w{index}", 0.1)]
    assert held_out == [2, 20, 29, 37]


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_out_what_a_smaller_one_does_and_more(source, one, other):
    smaller, larger = sorted((one, other))
    assert is_held_out(source, smaller) <= is_held_out(source, larger)


def test_all_lines_of_a_source_are_on_the_same_side(write):
    content = "".join(f"w{index % 50}\tt{index}\n" for index in range(400))
    corpus = build_corpus(read_pairs(write(content)), held_out_share=0.3)
    train, held_out = (
        {tuple(source) for source in side.sources} for side in (corpus.train, corpus.held_out)
    )
    assert not train & held_out
    assert len(train | held_out) == 50


def test_sources_are_grouped_with_all_of_their_targets_in_order(write):
    file = read_pairs(write("b\tx\na\ty\nb\tz\na\ty\n"))
    vocabulary = Vocabulary(symbols=("a", "b"), specials=())
    targets = Vocabulary(symbols=("x", "y", "z"), specials=())
    sources, references = encode_pairs(file, file.lines, vocabulary, targets).by_source()
    assert [source.tolist() for source in sources] == [[1], [0]]
    assert [[target.tolist() for target in wanted] for wanted in references] == [
        [[0], [2]],
        [[1], [1]],
    ]


@pytest.mark.parametrize(("share", "held_out"), [(0.0, 0), (1.0, 20)])
def test_a_corpus_with_nothing_on_one_side_is_refused(write, share, held_out):
    path = write(many(20))
    with pytest.raises(PairsError) as caught:
        build_corpus(read_pairs(path), held_out_share=share)
    assert str(caught.value) == (
        f"{path}: expected sources enough to hold {share:.0%} out, got 20 lines, "
        f"{held_out} of them held out"
    )


def test_a_symbol_that_a_given_vocabulary_lacks_is_refused_by_line(write):
    path = write("ab\tx\nac\tx\n")
    file = read_pairs(path)
    vocabulary = Vocabulary(symbols=("a", "b"), specials=())
    with pytest.raises(PairsError) as caught:
        encode_pairs(file, file.lines, vocabulary, Vocabulary(symbols=("x",), specials=()))
    assert str(caught.value) == (
        f"{path}, line 2: source: expected symbols of the alphabet 'ab', "
        "got 'c' (U+0063) at position 1"
    )


@pytest.mark.parametrize(("column", "line"), [("source", "aaaaa\tb"), ("target", "a\tbbbbb")])
def test_a_line_that_is_too_long_is_refused_not_cut(write, monkeypatch, column, line):
    monkeypatch.setattr(pairs, "MAX_SYMBOLS", 4)
    path = write(f"{many(99)}{line}\n")
    with pytest.raises(PairsError) as caught:
        build_corpus(read_pairs(path))
    assert str(caught.value) == f"{path}, line 100: {column}: expected at most 4 symbols, got 5"


def test_a_line_of_as_many_symbols_as_may_be_is_taken(write, monkeypatch):
    monkeypatch.setattr(pairs, "MAX_SYMBOLS", 4)
    corpus = build_corpus(read_pairs(write(f"{many(99)}aaaa\tb b b b\n")), target_symbols="spaces")
    assert len(corpus.train) + len(corpus.held_out) == 100

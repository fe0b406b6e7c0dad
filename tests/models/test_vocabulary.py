import json
import re
import string
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.vocabulary import BOS, EOS, MASK, UNKNOWN, UnknownSymbolError, Vocabulary

ENGLISH = Vocabulary.english_letters(MASK)
SPACED = Vocabulary(symbols=("AE1", "K", "T", "ŋ", "."), specials=(BOS, EOS), separator=" ")
PLAIN = Vocabulary(symbols=tuple("abcdefghijklmnop"), specials=(BOS,))
VOCABULARIES = pytest.mark.parametrize(
    "vocabulary", [ENGLISH, PLAIN, SPACED], ids=["english", "plain", "spaced"]
)
# Letters whose lower case is longer, is another letter's, or is ASCII though they are not.
TRICKY = "İK\u017fßΣ é\x00\r\n\u2028😀'-"


def test_the_books_vocabulary_has_28_symbols_and_one_special():
    assert ENGLISH.tokens == (UNKNOWN, " ", *string.ascii_lowercase, MASK)
    assert len(ENGLISH.symbols) == 28
    assert ENGLISH.special_id(MASK) == 28
    assert ENGLISH.alphabet == " " + string.ascii_lowercase


@given(st.text(alphabet=ENGLISH.alphabet))
def test_what_is_encoded_decodes_to_itself(text):
    assert ENGLISH.decode(ENGLISH.encode(text)) == text


@given(st.text(alphabet=PLAIN.alphabet))
def test_what_is_encoded_decodes_to_itself_without_an_unknown_token(text):
    ids = PLAIN.encode(text)
    assert ids.dtype == np.int32
    assert PLAIN.decode(ids) == text


@given(st.lists(st.integers(1, 27)))
def test_what_is_decoded_encodes_to_itself(ids):
    assert ENGLISH.encode(ENGLISH.decode(ids)).tolist() == ids


@given(st.lists(st.sampled_from(SPACED.symbols)))
def test_symbols_between_separators_are_encoded_and_decoded(symbols):
    text = " ".join(symbols)
    ids = SPACED.encode(text)
    assert ids.dtype == np.int32
    assert [SPACED.symbols[index] for index in ids] == symbols
    assert SPACED.split(text) == symbols
    assert SPACED.decode(ids) == text


separators = st.sampled_from([" ", ",", "\t", "|", "a"])


@given(st.data(), separators)
def test_any_names_without_the_separator_can_be_symbols(data, separator):
    alphabet = "abK1ŋ ,|\t".replace(separator, "")
    names = st.text(alphabet, min_size=1, max_size=4)
    symbols = tuple(data.draw(st.lists(names, min_size=1, max_size=5, unique=True)))
    vocabulary = Vocabulary(symbols=symbols, specials=(), separator=separator)
    ids = data.draw(st.lists(st.integers(0, len(symbols) - 1)))
    text = vocabulary.decode(ids)
    assert text == separator.join(symbols[index] for index in ids)
    assert vocabulary.encode(text).tolist() == ids


def test_the_alphabet_of_symbols_between_separators_reads_as_a_text_of_them():
    assert SPACED.alphabet == "AE1 K T ŋ ."
    assert SPACED.encode(SPACED.alphabet).tolist() == [0, 1, 2, 3, 4]


def test_special_tokens_stand_between_separators_too():
    assert SPACED.decode([5, 1, 0, 2, 6]) == "<bos> K AE1 T <eos>"


def test_special_and_unknown_tokens_are_decoded_by_name():
    assert ENGLISH.decode([21, 28, 0]) == "t<mask><unk>"


@given(st.text() | st.text(alphabet="aZ " + TRICKY))
@example(TRICKY)
@example("  Hello,\tWorld 42!")
def test_normalising_is_the_books_preprocessing(text):
    expected = re.sub("[^A-Za-z]+", " ", text).lower()
    assert ENGLISH.normalize(text).text == expected


@VOCABULARIES
@given(text=st.text() | st.text(alphabet="aZ " + TRICKY))
@example(text=TRICKY)
def test_the_quick_way_to_normalise_gives_the_same_text(vocabulary, text):
    assert vocabulary.normalized(text) == vocabulary.normalize(text).text


@given(st.text() | st.text(alphabet="aZ " + TRICKY))
@example("")
def test_spans_map_every_character_back_to_where_it_came_from(text):
    normalized = ENGLISH.normalize(text)
    spans = list(zip(normalized.starts, normalized.ends, strict=True))
    assert len(spans) == len(normalized.text)
    assert "".join(text[start:end] for start, end in spans) == text
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
    for character, (start, end) in zip(normalized.text, spans, strict=True):
        assert ENGLISH.normalize(text[start:end]).text == character


@given(st.text())
def test_normalising_twice_is_normalising_once(text):
    once = ENGLISH.normalize(text).text
    assert ENGLISH.normalize(once).text == once
    assert 0 not in ENGLISH.encode(once)


@given(st.text())
def test_without_normalisation_a_text_stays_as_it_is(text):
    normalized = PLAIN.normalize(text)
    assert normalized.text == text
    assert normalized.starts == tuple(range(len(text)))
    assert normalized.ends == tuple(range(1, len(text) + 1))


def test_an_unknown_symbol_is_named_with_its_position_and_the_alphabet():
    with pytest.raises(UnknownSymbolError) as caught:
        PLAIN.encode("abcé")
    assert caught.value.position == 3
    assert caught.value.symbol == "é"
    expected = "expected symbols of the alphabet 'abcdefghijklmnop', got 'é' (U+00E9) at position 3"
    assert str(caught.value) == expected


def test_the_first_of_several_unknown_symbols_is_named():
    with pytest.raises(UnknownSymbolError, match=r"got 'z' .* at position 1"):
        PLAIN.encode("azby")


def test_positions_count_code_points():
    with pytest.raises(UnknownSymbolError) as caught:
        Vocabulary(symbols=("a", "😀"), specials=()).encode("😀a!")
    assert caught.value.position == 2


@pytest.mark.parametrize(
    ("text", "symbol", "position"),
    [
        ("K AE2 T", "'AE2'", 1),
        ("K AE1 t", r"'t' \(U\+0074\)", 2),
        ("K  T", "''", 1),
        (" K", "''", 0),
        ("K ", "''", 1),
        (" ", "''", 0),
        ("K <eos>", "'<eos>'", 1),
    ],
)
def test_positions_count_symbols_between_separators(text, symbol, position):
    expected = rf"expected symbols of the alphabet 'AE1 K T ŋ \.', got {symbol} at position"
    with pytest.raises(UnknownSymbolError, match=f"^{expected} {position}$") as caught:
        SPACED.encode(text)
    assert caught.value.position == position


def test_with_an_unknown_token_any_text_is_encoded():
    assert ENGLISH.encode("aé!").tolist() == [2, 0, 0]


def test_special_tokens_are_not_read_out_of_text():
    with pytest.raises(UnknownSymbolError, match="got '<'"):
        PLAIN.encode(BOS)


def test_an_unknown_special_token_is_refused_by_name():
    with pytest.raises(ValueError, match=r"expected one of \('<bos>',\), got '<mask>'"):
        PLAIN.special_id(MASK)


@VOCABULARIES
def test_json_brings_the_same_vocabulary_back(vocabulary):
    text = json.dumps(vocabulary.to_json())
    assert Vocabulary.from_json(json.loads(text)) == vocabulary


def test_json_that_says_nothing_of_a_separator_means_none():
    data = PLAIN.to_json()
    del data["separator"]
    assert Vocabulary.from_json(data) == PLAIN


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"symbols": ("a", "b", "a")}, "expected every token once, got repeated ones"),
        ({"symbols": ("a", BOS)}, "expected every token once, got repeated ones"),
        ({"symbols": ("a", "bc", "")}, r"expected single characters, got \['bc', ''\]"),
        ({"symbols": ("a", UNKNOWN)}, r"expected single characters, got \['<unk>'\]"),
        (
            {"symbols": ("a", "b c", "", " "), "separator": " "},
            r"expected names without ' ', got \['b c', '', ' '\]",
        ),
        ({"symbols": ("a", "b", "a"), "separator": " "}, "expected every token once"),
        (
            {"symbols": ("a", "b"), "separator": ", "},
            "separator: expected one character or none, got ', '",
        ),
        ({"normalization": "nfd"}, r"expected one of \('none', 'letters', 'nfc'\), got 'nfd'"),
    ],
)
def test_a_bad_vocabulary_is_refused_with_what_was_expected(fields, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(**{"symbols": ("a", "b"), "specials": (BOS,), **fields})


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"symbols": ["a"], "specials": []},
        {"symbols": 5, "specials": [], "normalization": "none"},
        {"symbols": [5], "specials": [], "normalization": "none"},
        {"symbols": [["a"]], "specials": [], "normalization": "none"},
        {"symbols": ["a"], "specials": [None], "normalization": "none"},
        {"symbols": ["a"], "specials": [], "normalization": 5},
        {"symbols": ["a"], "specials": [], "normalization": "none", "separator": 5},
        {"symbols": ["a"], "specials": [], "normalization": "none", "separator": None},
    ],
)
def test_json_that_is_no_vocabulary_is_refused(data):
    with pytest.raises(ValueError, match="expected"):
        Vocabulary.from_json(data)


COMPOSED = Vocabulary(symbols=(UNKNOWN, "é", "\n"), specials=(MASK,), normalization="nfc")
# Marks in the wrong order, marks without a letter, Hangul in pieces, letters that stay apart.
PIECES = "e\u0301\u0316a\u0327\u0302\r\n\r\u1112\u1161\u11ab\uac00\u11a8\u0958\u0f73\u0f71\u0344é"


@given(st.text() | st.text(alphabet=PIECES))
@example(PIECES)
@example("\u0301e\u0301")
@example("a\r\r\n\n")
def test_composing_is_unicodes_composed_form_with_line_feeds(text):
    expected = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    assert COMPOSED.normalize(text).text == expected
    assert COMPOSED.normalized(text) == expected


@given(st.text() | st.text(alphabet=PIECES))
@example(PIECES)
def test_spans_of_composed_characters_cover_what_was_sent_in_order(text):
    normalized = COMPOSED.normalize(text)
    spans = list(zip(normalized.starts, normalized.ends, strict=True))
    assert len(spans) == len(normalized.text)
    covered = {index for start, end in spans for index in range(start, end)}
    assert covered == set(range(len(text)))
    assert spans == sorted(spans)


def test_a_letter_and_its_mark_are_one_character_that_stands_for_both():
    normalized = COMPOSED.normalize("e\u0301\r\nx")
    assert normalized.text == "é\nx"
    assert (normalized.starts, normalized.ends) == ((0, 2, 4), (2, 4, 5))


@pytest.mark.parametrize("vocabulary", [ENGLISH, PLAIN, COMPOSED], ids=["letters", "none", "nfc"])
@given(text=st.text() | st.text(alphabet="aZ " + TRICKY))
def test_normalising_without_origins_gives_the_same_text(vocabulary, text):
    assert vocabulary.normalized(text) == vocabulary.normalize(text).text


@pytest.mark.parametrize("size", [254, 255, 256, 400])
def test_every_symbol_has_its_id_however_many_there_are(size):
    symbols = tuple(map(chr, reversed(range(size))))
    vocabulary = Vocabulary(symbols=symbols, specials=())
    assert vocabulary.encode("".join(symbols)).tolist() == list(range(size))
    assert [vocabulary.encode(symbol).tolist() for symbol in symbols] == [[i] for i in range(size)]

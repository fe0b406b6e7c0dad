"""Text to token ids and back; the only copy, used by training and service alike.

Pure numpy. Ids run over ``symbols`` first and ``specials`` last, so that a model which predicts
symbols alone has one logit per symbol.
"""

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, SupportsIndex

import numpy as np

UNKNOWN = "<unk>"
MASK = "<mask>"
BOS = "<bos>"
EOS = "<eos>"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_OTHER_THAN_LETTERS = re.compile("[^A-Za-z]+")
_OTHER_THAN_WORDS = re.compile("[^A-Za-z ]|  ")
NORMALIZATIONS = ("none", "letters", "nfc")
# No id, in a table of ids that are single bytes.
_MISSING = 255


class UnknownSymbolError(ValueError):
    """A text holds a symbol that the vocabulary lacks; ``position`` counts symbols from 0."""

    def __init__(self, symbol: str, position: int, alphabet: str) -> None:
        named = f"{symbol!r} (U+{ord(symbol):04X})" if len(symbol) == 1 else repr(symbol)
        super().__init__(
            f"expected symbols of the alphabet {alphabet!r}, got {named} at position {position}"
        )
        self.symbol = symbol
        self.position = position


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """A text as the model sees it, with where each of its characters came from.

    Character i of ``text`` stands for ``source[starts[i]:ends[i]]`` of the text that was given.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """The symbols of a model, and how raw text becomes a sequence of them.

    With ``separator`` "", every character of a text is a symbol; otherwise symbols are what stands
    between separators, as in ``K AE1 T``. ``normalization`` is "none"; or "letters": every run of
    characters outside A-Z and a-z becomes one space, then lower case (the preprocessing of Dive
    into Deep Learning for its corpus); or "nfc": letters and their marks are composed where
    Unicode has one character for both, every end of a line is a line feed, and all else stays.
    With ``has_unknown``, the first symbol is ``<unk>`` and stands for whatever is missing.

    Raises:
        ValueError: if a token repeats, a symbol could not be told apart in a text, the separator
            has several characters, or the normalisation is none that exists.
    """

    symbols: tuple[str, ...]
    specials: tuple[str, ...]
    normalization: str = "none"
    separator: str = ""

    def __post_init__(self) -> None:
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"normalization: expected one of {NORMALIZATIONS}, got {self.normalization!r}"
            )
        if len(self.separator) > 1:
            raise ValueError(f"separator: expected one character or none, got {self.separator!r}")
        if len(set(self.tokens)) != len(self.tokens):
            raise ValueError("symbols: expected every token once, got repeated ones")
        odd = [symbol for symbol in self.characters if self.split(symbol) != [symbol]]
        if odd:
            wanted = f"names without {self.separator!r}" if self.separator else "single characters"
            raise ValueError(f"symbols: expected {wanted}, got {odd[:5]}")

    @classmethod
    def english_letters(cls, special: str) -> "Vocabulary":
        """The book's vocabulary: an unknown token, the space and 26 letters, then ``special``."""
        return cls(symbols=(UNKNOWN, " ", *LETTERS), specials=(special,), normalization="letters")

    @property
    def tokens(self) -> tuple[str, ...]:
        """Every token, in the order of the ids."""
        return self.symbols + self.specials

    @property
    def has_unknown(self) -> bool:
        """Whether the first symbol stands for characters that are missing."""
        return bool(self.symbols) and self.symbols[0] == UNKNOWN

    @property
    def characters(self) -> tuple[str, ...]:
        """The symbols that stand for themselves in a text."""
        return self.symbols[1:] if self.has_unknown else self.symbols

    @property
    def alphabet(self) -> str:
        """The symbols in one string."""
        return self.separator.join(self.characters)

    def split(self, text: str) -> list[str]:
        """The symbols of a normalised text; between two separators stands the symbol ""."""
        if not self.separator:
            return list(text)
        return text.split(self.separator) if text else []

    def special_id(self, special: str) -> int:
        """The id of a special token.

        Raises:
            ValueError: if the vocabulary has no such token.
        """
        if special not in self.specials:
            raise ValueError(f"expected one of {self.specials}, got {special!r}")
        return len(self.symbols) + self.specials.index(special)

    def normalize(self, text: str) -> NormalizedText:
        """``text`` as training would have seen it, with the origin of every character."""
        if self.normalization == "none":
            return NormalizedText(text, tuple(range(len(text))), tuple(range(1, len(text) + 1)))
        if self.normalization == "nfc":
            return _compose(text)
        runs = [(found.start(), found.end()) for found in re.finditer("[A-Za-z]|[^A-Za-z]+", text)]
        characters = (text[start:end] for start, end in runs)
        normalized = "".join(c.lower() if c.isascii() and c.isalpha() else " " for c in characters)
        starts, ends = zip(*runs, strict=True) if runs else ((), ())
        return NormalizedText(normalized, starts, ends)

    def normalized(self, text: str) -> str:
        """The text of ``normalize`` alone, much faster: for whole corpora."""
        if self.normalization == "none":
            return text
        if self.normalization == "nfc":
            return unicodedata.normalize("NFC", re.sub("\r\n?", "\n", text))
        # Most requests are of words with a space between them.
        if _OTHER_THAN_WORDS.search(text):
            text = _OTHER_THAN_LETTERS.sub(" ", text)
        return text.lower()

    def encode(self, text: str) -> np.ndarray:
        """The token ids of a text that is normalised already, as int32.

        Raises:
            UnknownSymbolError: if a symbol is missing and the vocabulary has no unknown token.
        """
        if (found := self._encode_at_once(text)) is not None:
            return found
        ids, symbols = _ids(self.symbols), self.split(text)
        if self.has_unknown:
            return np.array([ids.get(symbol, 0) for symbol in symbols], dtype=np.int32)
        try:
            return np.array([ids[symbol] for symbol in symbols], dtype=np.int32)
        except KeyError as error:
            symbol = error.args[0]
            raise UnknownSymbolError(symbol, symbols.index(symbol), self.alphabet) from None

    def _encode_at_once(self, text: str) -> np.ndarray | None:
        """The token ids, if every character is a symbol that stands in the table of single bytes.

        Most texts are of such characters, and this takes a fifth of the time, or less.
        """
        if self.separator:
            return None
        try:
            ids = text.encode("latin-1").translate(_table(self.symbols))
        except UnicodeEncodeError:
            return None
        return None if _MISSING in ids else np.frombuffer(ids, np.uint8).astype(np.int32)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of ``ids``; unknown and special tokens appear by name, as in ``<unk>``."""
        # Items of arrays are objects of numpy, made one by one.
        plain = ids.tolist() if isinstance(ids, np.ndarray) else ids
        return self.separator.join(map(self.tokens.__getitem__, plain))

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Vocabulary":
        """The vocabulary that ``to_json`` wrote.

        Raises:
            ValueError: if ``data`` is not such an object.
        """
        try:
            return cls(
                symbols=tuple(data["symbols"]),
                specials=tuple(data["specials"]),
                normalization=data["normalization"],
                separator=data.get("separator", ""),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"vocabulary: expected symbols, specials, normalization: {error!r}"
            ) from error


@functools.lru_cache(maxsize=64)
def _ids(symbols: tuple[str, ...]) -> dict[str, int]:
    """The id of every symbol; every text of every request asks for them."""
    return {symbol: index for index, symbol in enumerate(symbols)}


@functools.lru_cache(maxsize=64)
def _table(symbols: tuple[str, ...]) -> bytes:
    """The id of every character up to U+00FF that is among the first symbols, else ``_MISSING``."""
    ids = _ids(symbols[:_MISSING])
    return bytes(ids.get(chr(code), _MISSING) for code in range(256))


def _compose(text: str) -> NormalizedText:
    """``text`` in Unicode's composed form (NFC), with line feeds for line ends.

    Characters that compose do so with their neighbours, so a text is composed piece by piece, each
    from one character that composes with none before it to the next such one.
    """
    joining = _joining()
    inner = [
        index
        for index, character in enumerate(text)
        if character not in joining and text[index - 1 : index + 1] != "\r\n"
    ]
    # What comes before the first of them is a piece of its own.
    edges = sorted({0, *inner, len(text)})
    composed: list[str] = []
    spans: list[tuple[int, int]] = []
    for start, end in itertools.pairwise(edges):
        piece = re.sub("\r\n?", "\n", text[start:end])
        result = unicodedata.normalize("NFC", piece)
        composed.append(result)
        if len(result) == end - start:
            spans += [(index, index + 1) for index in range(start, end)]
        else:
            spans += [(start, end)] * len(result)
    starts, ends = zip(*spans, strict=True) if spans else ((), ())
    return NormalizedText("".join(composed), starts, ends)


@functools.cache
def _joining() -> frozenset[str]:
    """Every character that may compose with, or change places with, one before it."""
    joining = set()
    for character in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.combining(unicodedata.normalize("NFD", character)[0]):
            joining.add(character)
        parts = unicodedata.decomposition(character)
        if parts and not parts.startswith("<"):
            # All but the first; Hangul is composed by rule and listed nowhere.
            joining |= {chr(int(part, 16)) for part in parts.split()[1:]}
    jamo = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
    return frozenset(joining.union(map(chr, jamo)))

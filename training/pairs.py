"""Two-column files: a source and its target on every line, between them a tab.

Either side is a sequence of characters, or of symbols between spaces. A source may stand on
several lines with a target each. Nothing is skipped and nothing is repaired: a line that is not
what it should be is an error that names file and line.
"""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.vocabulary import BOS, EOS, UNKNOWN, UnknownSymbolError, Vocabulary

SIDES = {"characters": "", "spaces": " "}
MAX_SYMBOLS = 512
HASH_RANGE = 1 << 64

logger = logging.getLogger(__name__)


class PairsError(ValueError):
    """A file of pairs cannot be used; the message names the file, and the line where it is one."""


class Line(NamedTuple):
    """A line of a file of pairs, counted from 1."""

    number: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class PairFile:
    """The lines of a file and what identifies it."""

    path: Path
    sha256: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sources and their targets as token ids, in the order of the file."""

    sources: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.sources)

    def by_source(self) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
        """Every source once, in the order of the file, with all of its targets."""
        found: dict[bytes, tuple[np.ndarray, list[np.ndarray]]] = {}
        for source, target in zip(self.sources, self.targets, strict=True):
            found.setdefault(source.tobytes(), (source, []))[1].append(target)
        return [source for source, _ in found.values()], [wanted for _, wanted in found.values()]


@dataclass(frozen=True, slots=True)
class PairCorpus:
    """The pairs of a file, some of them held out, with the vocabularies of either side."""

    name: str
    sha256: str
    train: Pairs
    held_out: Pairs
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    held_out_share: float

    def describe(self) -> dict[str, Any]:
        """What a bundle says of its pairs."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "num_pairs": len(self.train) + len(self.held_out),
            "num_held_out": len(self.held_out),
            "held_out_share": self.held_out_share,
        }


def read_pairs(path: Path) -> PairFile:
    """The lines of a file of pairs in UTF-8; a byte-order mark and CRLF line ends are let pass.

    Raises:
        PairsError: if the file cannot be read, or a line is not two columns of text.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PairsError(f"{path}: expected a readable file: {error.strerror}") from error
    rows = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if rows[-1] == b"":
        rows.pop()
    if not rows:
        raise PairsError(f"{path}: expected lines of two columns, got an empty file")
    lines = tuple(_line(path, number, row) for number, row in enumerate(rows, 1))
    return PairFile(path, hashlib.sha256(content).hexdigest(), lines)


def _line(path: Path, number: int, row: bytes) -> Line:
    where = f"{path}, line {number}"
    try:
        text = row.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise PairsError(
            f"{where}: expected UTF-8, got the byte 0x{row[error.start]:02x} at byte "
            f"{error.start + 1} of the line"
        ) from error
    if not text:
        raise PairsError(f"{where}: expected two columns with a tab between, got an empty line")
    columns = text.split("\t")
    if len(columns) != 2:
        raise PairsError(f"{where}: expected two columns with a tab between, got {len(columns)}")
    for name, column in zip(("source", "target"), columns, strict=True):
        if not column:
            raise PairsError(f"{where}: {name}: expected at least one symbol, got none")
    return Line(number, *columns)


def build_vocabulary(
    file: PairFile, column: str, symbols: str, specials: tuple[str, ...] = ()
) -> Vocabulary:
    """The symbols of one column in the order of their code points, then ``specials``.

    ``symbols`` says what a symbol is: one of ``SIDES``.

    Raises:
        PairsError: if a line has two spaces where symbols are between spaces, or spells a special.
    """
    separator = SIDES[symbols]
    found: set[str] = set()
    for line in file.lines:
        text = getattr(line, column)
        parts = text.split(separator) if separator else list(text)
        for wrong in ("", UNKNOWN, *specials):
            if wrong in parts:
                raise PairsError(
                    f"{file.path}, line {line.number}: {column}: expected symbols with one space "
                    f"between, none of them {' or '.join((UNKNOWN, *specials))}, got {wrong!r}"
                )
        found.update(parts)
    return Vocabulary(symbols=tuple(sorted(found)), specials=specials, separator=separator)


def build_corpus(
    file: PairFile,
    *,
    source_symbols: str = "characters",
    target_symbols: str = "characters",
    held_out_share: float = 0.1,
) -> PairCorpus:
    """A file as a corpus with vocabularies of its own.

    Raises:
        PairsError: if a line holds what it must not, or either share would be empty.
    """
    source_vocabulary = build_vocabulary(file, "source", source_symbols)
    target_vocabulary = build_vocabulary(file, "target", target_symbols, (BOS, EOS))
    held_out = [line for line in file.lines if is_held_out(line.source, held_out_share)]
    train = [line for line in file.lines if not is_held_out(line.source, held_out_share)]
    if not held_out or not train:
        raise PairsError(
            f"{file.path}: expected sources enough to hold {held_out_share:.0%} out, got "
            f"{len(file.lines)} lines, {len(held_out)} of them held out"
        )
    return PairCorpus(
        name=file.path.name,
        sha256=file.sha256,
        train=encode_pairs(file, train, source_vocabulary, target_vocabulary),
        held_out=encode_pairs(file, held_out, source_vocabulary, target_vocabulary),
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        held_out_share=held_out_share,
    )


def is_held_out(source: str, share: float) -> bool:
    """Whether a source is held out: a hash of it falls below ``share``.

    All lines of a source are on the same side, in every file and every run.
    """
    drawn = int.from_bytes(hashlib.sha256(source.encode("utf-8")).digest()[:8], "big")
    return drawn < share * HASH_RANGE


def encode_pairs(
    file: PairFile,
    lines: Iterable[Line],
    source_vocabulary: Vocabulary,
    target_vocabulary: Vocabulary,
) -> Pairs:
    """Lines as token ids.

    Raises:
        PairsError: if a line holds a symbol that its vocabulary lacks, or is too long.
    """
    sources, targets = [], []
    for line in lines:
        for column, text, vocabulary, encoded in (
            ("source", line.source, source_vocabulary, sources),
            ("target", line.target, target_vocabulary, targets),
        ):
            where = f"{file.path}, line {line.number}: {column}"
            try:
                tokens = vocabulary.encode(text)
            except UnknownSymbolError as error:
                raise PairsError(f"{where}: {error}") from error
            if len(tokens) > MAX_SYMBOLS:
                raise PairsError(
                    f"{where}: expected at most {MAX_SYMBOLS} symbols, got {len(tokens)}"
                )
            encoded.append(tokens)
    return Pairs(tuple(sources), tuple(targets))

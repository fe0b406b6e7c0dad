"""Text of one's own: any UTF-8 files as a corpus, with a vocabulary built from them or given.

The files are read one after the other, each ended by a line feed. One part in twenty is held out
in contiguous blocks, spread evenly, and the vocabulary is built from the rest.
"""

import codecs
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.vocabulary import UNKNOWN, UnknownSymbolError, Vocabulary
from training.corpus import Corpus, CorpusError

BUILD = "build"
# Characters seen fewer times than that in the training part become <unk>.
MIN_COUNT = 5
# Less than that is no text to learn from, or to measure on.
MIN_CHARACTERS, MIN_TO_EVALUATE = 10_000, 1_000
HELD_OUT_SHARE = 0.05
MAX_BLOCKS, MIN_BLOCK = 16, 1_024
MAX_LISTED = 40

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file that was read: its name, the SHA-256 of its bytes, its text."""

    name: str
    sha256: str
    text: str


class OwnText(NamedTuple):
    """Files as tokens of a vocabulary."""

    corpus: Corpus
    vocabulary: Vocabulary


def read_files(paths: Sequence[Path]) -> tuple[TextFile, ...]:
    """The files as text, in the order given; a byte order mark is no part of it.

    Raises:
        CorpusError: if one cannot be read, is empty or is not UTF-8; names the file and the line.
    """
    return tuple(_read_file(path) for path in paths)


def _read_file(path: Path) -> TextFile:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorpusError(
            f"corpus: expected a readable file, got {path}: {error.strerror}"
        ) from error
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise CorpusError(
            f"corpus: {path}, line {line}: expected UTF-8, got the byte "
            f"0x{error.object[error.start]:02X}; convert the file first, for example with iconv"
        ) from error
    if not text.strip():
        raise CorpusError(f"corpus: {path}: expected text, got an empty file")
    ended = text if text.endswith("\n") else f"{text}\n"
    return TextFile(path.name, hashlib.sha256(content).hexdigest(), ended)


def load_to_train(paths: Sequence[Path], vocabulary: str, special: str) -> OwnText:
    """Files to train on, with blocks held out; ``vocabulary`` is "build", or a file that gives it.

    Raises:
        CorpusError: if a file does not do, or there is too little text.
    """
    files = read_files(paths)
    given = None if vocabulary == BUILD else read_vocabulary(Path(vocabulary), special)
    normalization = given.normalization if given else "nfc"
    plain = Vocabulary(symbols=(), specials=(), normalization=normalization)
    texts = [plain.normalized(file.text) for file in files]
    size = sum(map(len, texts))
    if size < MIN_CHARACTERS:
        raise CorpusError(
            f"corpus: expected at least {MIN_CHARACTERS} characters in all, got {size} in "
            f"{', '.join(str(path) for path in paths)}"
        )
    held_out = held_out_blocks(size)
    chosen = given or build_vocabulary(_without("".join(texts), held_out), special)
    return OwnText(_encode(files, texts, chosen, held_out), chosen)


def load_to_evaluate(
    paths: Sequence[Path], vocabulary: Vocabulary, trained_on: dict[str, Any]
) -> OwnText:
    """Files to measure a model on.

    If they are what it was ``trained_on``, in the words of its bundle, then what was held out of
    them is the same again; otherwise all of them is.

    Raises:
        CorpusError: if a file does not do, some but not all are those it was trained on, or there
            is too little text.
    """
    files = read_files(paths)
    same = _same_files(files, trained_on)
    texts = [vocabulary.normalized(file.text) for file in files]
    size = sum(map(len, texts))
    if size < MIN_TO_EVALUATE:
        raise CorpusError(
            f"corpus: expected at least {MIN_TO_EVALUATE} characters in all, got {size}"
        )
    blocks = trained_on["held_out_characters"] if same else [(0, size)]
    held_out = tuple((first, end) for first, end in blocks)
    return OwnText(_encode(files, texts, vocabulary, held_out), vocabulary)


def _same_files(files: Sequence[TextFile], trained_on: dict[str, Any]) -> bool:
    trained = trained_on.get("files", [])
    expected = [file["sha256"] for file in trained] or [trained_on.get("sha256")]
    got = [file.sha256 for file in files]
    seen = [file.name for file in files if file.sha256 in expected]
    if got != expected and seen:
        names = ", ".join(file["name"] for file in trained) or trained_on.get("name")
        raise CorpusError(
            f"corpus: {', '.join(seen)}: the model was trained on that; expected either other text "
            f"or all of what it was trained on, in that order: {names}"
        )
    return got == expected


def held_out_blocks(size: int) -> tuple[tuple[int, int], ...]:
    """Where ``size`` characters are held out: one in twenty, each block at the end of its part.

    There are 1 to 16 blocks, of at least 1,024 characters where there is more than one.
    """
    num_held_out = int(size * HELD_OUT_SHARE)
    count = min(max(num_held_out // MIN_BLOCK, 1), MAX_BLOCKS)
    length = num_held_out // count
    ends = [size * (index + 1) // count for index in range(count)]
    return tuple((end - length, end) for end in ends)


def _without(text: str, blocks: Sequence[tuple[int, int]]) -> str:
    edges = [0, *(edge for block in blocks for edge in block), len(text)]
    return "".join(text[first:end] for first, end in zip(edges[::2], edges[1::2], strict=True))


def build_vocabulary(text: str, special: str) -> Vocabulary:
    """<unk> and every character that ``text`` has at least five times, in the order of Unicode."""
    counts = Counter(text)
    kept = sorted(character for character, count in counts.items() if count >= MIN_COUNT)
    return Vocabulary(symbols=(UNKNOWN, *kept), specials=(special,), normalization="nfc")


def read_vocabulary(path: Path, special: str) -> Vocabulary:
    """The vocabulary that a file gives, with ``special`` as its one special token.

    A JSON file gives that of a model (its ``model.json``) or is one itself; any other file gives
    <unk> and every character in it but the ends of its lines.

    Raises:
        CorpusError: if it gives none.
    """
    text = _read_file(path).text
    if path.suffix != ".json":
        plain = Vocabulary(symbols=(), specials=(), normalization="nfc")
        characters = sorted(set(plain.normalized(text)) - {"\n"})
        return Vocabulary(symbols=(UNKNOWN, *characters), specials=(special,), normalization="nfc")
    try:
        content = json.loads(text)
        found = Vocabulary.from_json({**content.get("vocabulary", content), "specials": [special]})
    except (AttributeError, TypeError, ValueError) as error:
        raise CorpusError(
            f"vocabulary: {path}: expected a model.json, or JSON with symbols and normalization: "
            f"{error}"
        ) from error
    if not found.symbols:
        raise CorpusError(f"vocabulary: {path}: expected at least one symbol, got none")
    return found


def _encode(
    files: tuple[TextFile, ...],
    texts: list[str],
    vocabulary: Vocabulary,
    held_out: tuple[tuple[int, int], ...],
) -> Corpus:
    tokens = []
    for file, text in zip(files, texts, strict=True):
        try:
            tokens.append(vocabulary.encode(text))
        except UnknownSymbolError as error:
            line = text[: text.index(error.symbol)].count("\n") + 1
            raise CorpusError(f"corpus: {file.name}, line {line}: {error}") from error
    counts = Counter("".join(texts))
    unknown = {
        character: count
        for character, count in counts.most_common()
        if character not in vocabulary.characters
    }
    corpus = Corpus(
        tokens=np.concatenate(tokens),
        sha256=_digest(files),
        name=", ".join(file.name for file in files),
        held_out=held_out,
        details={
            "files": [{"name": file.name, "sha256": file.sha256} for file in files],
            "num_unknown": sum(unknown.values()),
        },
    )
    _tell(files, corpus, vocabulary, unknown)
    return corpus


def _digest(files: Sequence[TextFile]) -> str:
    """That of the one file, or of the files' digests in their order."""
    if len(files) == 1:
        return files[0].sha256
    return hashlib.sha256("\n".join(file.sha256 for file in files).encode()).hexdigest()


def _tell(
    files: Sequence[TextFile], corpus: Corpus, vocabulary: Vocabulary, unknown: dict[str, int]
) -> None:
    """Says what became of the text, so that nothing of it is left out without a word."""
    logger.info(
        "text: %d characters in %d files, %d after normalisation (%s), %d of them held out; "
        "%d symbols",
        sum(len(file.text) for file in files),
        len(files),
        corpus.tokens.size,
        vocabulary.normalization,
        sum(end - first for first, end in corpus.held_out),
        len(vocabulary.symbols),
    )
    if unknown:
        listed, more = "".join(list(unknown)[:MAX_LISTED]), len(unknown) - MAX_LISTED
        logger.info(
            "text: %d characters (%.3f %%) are %s, among them %r%s",
            sum(unknown.values()),
            100 * sum(unknown.values()) / corpus.tokens.size,
            UNKNOWN,
            listed,
            f" and {more} more" if more > 0 else "",
        )

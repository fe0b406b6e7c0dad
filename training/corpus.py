"""The book's corpus, *The Time Machine* by H. G. Wells: found, verified and cut into windows.

The text is not part of this project. It is taken from the path that is given, else from a cached
copy, else from the book's public data site; whatever its origin, only the published file passes.
Source: Dive into Deep Learning (2026), section "Converting Raw Text into Sequence Data".
"""

import hashlib
import http.client
import logging
import os
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models.vocabulary import Vocabulary

NAME = "timemachine.txt"
SHA1 = "090b5e7e70c295757f55df93cb0a180b9691891a"
URL = "http://d2l-data.s3-accelerate.amazonaws.com/timemachine.txt"
DOWNLOAD_TIMEOUT_S = 30.0
MAX_BYTES = 1_000_000

logger = logging.getLogger(__name__)


class CorpusError(ValueError):
    """The corpus cannot be had, or is not the published file."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text as token ids, with what identifies the file that it came from.

    ``held_out`` are the stretches (first, one past the last) that no training window may touch;
    ``details`` is what else a bundle says of the text.
    """

    tokens: np.ndarray
    sha256: str
    name: str
    held_out: tuple[tuple[int, int], ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """What a bundle says of its corpus."""
        about = {"name": self.name, "sha256": self.sha256, "num_tokens": int(self.tokens.size)}
        if self.held_out:
            about["held_out_characters"] = [list(stretch) for stretch in self.held_out]
        return {**about, **self.details}


def cache_directory() -> Path:
    """Where downloads are kept: ``$XDG_CACHE_HOME/triwire``, by default in ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "triwire"


def cache_path() -> Path:
    """Where a downloaded book is kept."""
    return cache_directory() / NAME


def is_book(path: Path) -> bool:
    """Whether that file is the published one.

    Raises:
        CorpusError: if it cannot be read.
    """
    return hashlib.sha1(_read(path), usedforsecurity=False).hexdigest() == SHA1


def load_corpus(path: Path | None, vocabulary: Vocabulary) -> Corpus:
    """The corpus as tokens of ``vocabulary``; without a path, the cached or downloaded file.

    Raises:
        CorpusError: if it cannot be read, cannot be downloaded, or is another file.
    """
    content = _read(path) if path else _cached_or_downloaded()
    found = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    if found != SHA1:
        origin = path or cache_path()
        raise CorpusError(
            f"corpus: expected the book's {NAME} with SHA-1 {SHA1}, got {found} from {origin}; "
            "to train on text of your own, name the model with --name"
        )
    text = vocabulary.normalized(content.decode("utf-8"))
    return Corpus(vocabulary.encode(text), hashlib.sha256(content).hexdigest(), NAME)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(
            f"corpus: expected a readable file, got {path}: {error.strerror}"
        ) from error


def _cached_or_downloaded() -> bytes:
    cached = cache_path()
    if cached.exists():
        return _read(cached)
    logger.info("downloading the corpus from %s", URL)
    try:
        with urllib.request.urlopen(URL, timeout=DOWNLOAD_TIMEOUT_S) as response:
            content = response.read(MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise CorpusError(
            f"corpus: no --corpus was given, there is no copy at {cached}, and {URL} could not be "
            f"downloaded ({error}); pass the book's {NAME} with --corpus PATH"
        ) from error
    if hashlib.sha1(content, usedforsecurity=False).hexdigest() == SHA1:
        cached.parent.mkdir(parents=True, exist_ok=True)
        staged = cached.with_suffix(".part")
        staged.write_bytes(content)
        os.replace(staged, cached)
    return content


def windows(tokens: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """The windows of ``size`` tokens that begin at ``starts``, one a row."""
    return tokens[starts[:, None] + np.arange(size)[None, :]]


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy of the frequencies of the tokens, in nats."""
    counts = np.bincount(tokens)
    probs = counts[counts > 0] / tokens.size
    return float(-(probs * np.log(probs)).sum())

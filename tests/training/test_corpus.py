import hashlib
import http.client
import io
import math
import urllib.error
import urllib.request

import numpy as np
import pytest

from models.vocabulary import MASK, Vocabulary
from training import corpus
from training.corpus import CorpusError, cache_path, load_corpus, unigram_entropy, windows

VOCABULARY = Vocabulary.english_letters(MASK)
CONTENT = b"The Time Machine, by H. G. Wells [1898]\n\nI\n\n\nThe Time Traveller"
NORMALIZED = "the time machine by h g wells i the time traveller"


@pytest.fixture
def published(monkeypatch):
    """Passes ``CONTENT`` off for the book's file."""
    monkeypatch.setattr(corpus, "SHA1", hashlib.sha1(CONTENT).hexdigest())


@pytest.fixture
def path(tmp_path, published):
    path = tmp_path / "mine.txt"
    path.write_bytes(CONTENT)
    return path


def answer_with(monkeypatch, content):
    """Makes every download give ``content``; the list that comes back counts them."""
    downloads = []

    def urlopen(url, timeout):
        downloads.append((url, timeout))
        return io.BytesIO(content)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return downloads


def test_a_given_file_is_normalised_and_encoded(path):
    loaded = load_corpus(path, VOCABULARY)
    assert VOCABULARY.decode(loaded.tokens) == NORMALIZED
    assert loaded.tokens.dtype == np.int32


def test_a_corpus_describes_the_file_without_saying_where_it_lay(path):
    described = load_corpus(path, VOCABULARY).describe()
    assert described == {
        "name": "timemachine.txt",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "num_tokens": len(NORMALIZED),
    }


def test_only_the_published_file_passes(tmp_path):
    path = tmp_path / "other.txt"
    path.write_bytes(CONTENT)
    with pytest.raises(CorpusError) as caught:
        load_corpus(path, VOCABULARY)
    message = str(caught.value)
    assert "SHA-1 090b5e7e70c295757f55df93cb0a180b9691891a" in message
    assert f"got {hashlib.sha1(CONTENT).hexdigest()} from {path}" in message


@pytest.mark.parametrize("name", ["nothing.txt", "."], ids=["missing", "a directory"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(CorpusError, match="expected a readable file") as caught:
        load_corpus(tmp_path / name, VOCABULARY)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    "failure",
    [
        urllib.error.URLError("Name or service not known"),
        TimeoutError("timed out"),
        http.client.BadStatusLine("<html>"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_without_a_network_the_message_says_what_to_do(monkeypatch, failure):
    def urlopen(*arguments, **options):
        raise failure

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(CorpusError) as caught:
        load_corpus(None, VOCABULARY)
    message = str(caught.value)
    assert "pass the book's timemachine.txt with --corpus PATH" in message
    assert str(cache_path()) in message
    assert corpus.URL in message
    assert str(failure) in message


def test_a_download_is_verified_kept_and_not_repeated(monkeypatch, published):
    downloads = answer_with(monkeypatch, CONTENT)
    for _ in range(2):
        assert VOCABULARY.decode(load_corpus(None, VOCABULARY).tokens) == NORMALIZED
    assert downloads == [(corpus.URL, corpus.DOWNLOAD_TIMEOUT_S)]
    assert cache_path().read_bytes() == CONTENT
    assert list(cache_path().parent.iterdir()) == [cache_path()]


def test_a_download_of_something_else_is_refused_and_not_kept(monkeypatch, published):
    answer_with(monkeypatch, b"<html>log in to this network</html>")
    with pytest.raises(CorpusError, match=r"expected the book's timemachine\.txt with SHA-1"):
        load_corpus(None, VOCABULARY)
    assert not cache_path().exists()


def test_a_cached_copy_is_used_without_a_network(published):
    cache_path().parent.mkdir(parents=True)
    cache_path().write_bytes(CONTENT)
    assert VOCABULARY.decode(load_corpus(None, VOCABULARY).tokens) == NORMALIZED


def test_a_damaged_cached_copy_is_named(published):
    cache_path().parent.mkdir(parents=True)
    cache_path().write_bytes(CONTENT[:-1])
    with pytest.raises(CorpusError, match="SHA-1") as caught:
        load_corpus(None, VOCABULARY)
    assert str(cache_path()) in str(caught.value)


def test_the_cache_is_where_the_desktop_convention_puts_it(monkeypatch, tmp_path):
    assert cache_path() == tmp_path / "cache" / "triwire" / "timemachine.txt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_path() == tmp_path / ".cache" / "triwire" / "timemachine.txt"


def test_windows_are_runs_of_tokens_from_each_start():
    got = windows(np.arange(10), np.array([0, 6, 3]), 4)
    np.testing.assert_array_equal(got, [[0, 1, 2, 3], [6, 7, 8, 9], [3, 4, 5, 6]])


def test_the_entropy_of_equal_frequencies_is_the_logarithm_of_their_number():
    assert unigram_entropy(np.array([3, 5, 5, 3, 9, 9])) == pytest.approx(math.log(3))


def test_the_entropy_of_a_single_symbol_is_zero():
    assert unigram_entropy(np.array([4, 4])) == pytest.approx(0)

"""Training tests see no network, no cached corpus and no logging that others set up."""

import contextlib
import hashlib
import io
import logging
import struct
import urllib.request

import jax
import numpy as np
import pytest

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def threads_of_tests(monkeypatch):
    """The command line would choose XLA's threads for this process, whose devices are there."""
    from training import cli

    monkeypatch.setattr(cli, "run_calls_side_by_side", lambda pool_size: False)


@pytest.fixture(autouse=True)
def usual_promotion():
    """optax raises a float to the power of an integer array, which strict promotion forbids.

    The models and their losses run under it in tests/models.
    """
    with jax.numpy_dtype_promotion("standard"):
        yield


@contextlib.contextmanager
def logging_restored():
    """The command line sets logging up for a process of its own."""
    loggers = (logging.getLogger(), logging.getLogger("absl"))
    kept = [(logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, kept, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture(scope="session")
def command():
    """Runs ``python -m training`` in this process: exit status, stdout, stderr."""
    from training.cli import main

    def run(*arguments):
        out, err = io.StringIO(), io.StringIO()
        with (
            logging_restored(),
            jax.numpy_dtype_promotion("standard"),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = main([str(argument) for argument in arguments])
        return status, out.getvalue(), err.getvalue()

    return run


@pytest.fixture(scope="module")
def corpus_path(tmp_path_factory, corpus_text):
    """The synthetic text in a file that passes for the book's in the tests of one module."""
    from training import corpus

    path = tmp_path_factory.mktemp("corpus") / "timemachine.txt"
    path.write_text(corpus_text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "SHA1", hashlib.sha1(corpus_text.encode()).hexdigest())
        yield path


@pytest.fixture(scope="session")
def assert_png():
    """Checks that a file is a picture of a sensible size with something in it."""
    from matplotlib.image import imread

    def check(path):
        content = path.read_bytes()
        assert content.startswith(PNG_SIGNATURE)
        width, height = struct.unpack(">II", content[16:24])
        assert 500 <= width <= 2000
        assert 300 <= height <= 1000
        assert len(np.unique(imread(path).reshape(-1, 4), axis=0)) > 20

    return check

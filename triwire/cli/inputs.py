"""What is asked about: arguments, files, or standard input."""

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

STANDARD_INPUT = "-"
T = TypeVar("T")


class UsageError(Exception):
    """The command cannot be done as it was given; the message says what was expected."""


def texts(arguments: Sequence[str], files: Sequence[str]) -> list[str]:
    """The texts of a command: arguments as they are, then the lines of files.

    ``-`` stands for standard input, which is also read where nothing is given and no one sits at a
    terminal.

    Raises:
        UsageError: if there is none, or a file cannot be read.
    """
    if not arguments and not files:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("expected TEXT, --file FILE, or lines on standard input")
        files = [STANDARD_INPUT]
    found: list[str] = []
    for argument in arguments:
        found += lines(read_text(argument)) if argument == STANDARD_INPUT else [argument]
    for file in files:
        found += lines(read_text(file))
    if not found:
        raise UsageError("expected at least one line, got none")
    return found


def lines(text: str) -> list[str]:
    """The lines of a text, which end in a line feed, or in a carriage return and one."""
    *whole, rest = text.replace("\r\n", "\n").split("\n")
    return [*whole, rest] if rest else whole


def read_text(file: str) -> str:
    """All of a file, or of standard input.

    Raises:
        UsageError: if it cannot be read, or is not UTF-8.
    """
    return _decoded(read_bytes(file), file)


def _decoded(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{file}: expected UTF-8, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from None


def read_bytes(file: str) -> bytes:
    """The bytes of a file, or of standard input.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        return sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(
            f"expected a readable file, got {file}: {error.strerror or error}"
        ) from None


def read_input(file: str) -> str | np.ndarray:
    """A file as one input: an array where it is an ``.npy`` file, else its text.

    Raises:
        UsageError: if it cannot be read, or is neither.
    """
    content = read_bytes(file)
    if not content.startswith(np.lib.format.MAGIC_PREFIX):
        return _decoded(content, file)
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except ValueError as error:
        raise UsageError(f"{file}: expected an array in a .npy file: {error}") from None


def batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """The items in order, at most ``size`` at a time."""
    for start in range(0, len(items), size):
        yield list(items[start : start + size])

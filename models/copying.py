"""``python -m models.copying SOURCE TARGET``: has the bundles of one directory in another too.

An image brings its models along, a volume starts empty: this puts them there, beside one's own.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from models.directories import unreadable_directories


def copy_bundles(source: Path, target: Path) -> list[str]:
    """Copies every NAME/VERSION that ``target`` lacks, and names what was copied.

    A bundle appears whole or not at all, and one that is there stays as it is.

    Raises:
        ValueError: if ``source`` holds no bundles, or ``target`` cannot be written to.
    """
    found = sorted(card.parent for card in source.glob("*/*/model.json"))
    if not found:
        raise ValueError(f"source: expected NAME/VERSION/model.json under {source}, found none")
    names = [str(bundle.relative_to(source)) for bundle in found]
    missing = [name for name in names if not (target / name).exists()]
    try:
        for name in missing:
            _copy(source / name, target / name)
    except OSError as error:
        raise ValueError(
            f"target: expected a directory to write to, got {target}: {error}"
        ) from None
    return missing


def _copy(bundle: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copying-") as scratch:
        staged = Path(scratch) / "bundle"
        # Not the modes: what belongs to root in an image is to be writable to its new owner.
        shutil.copytree(bundle, staged, copy_function=shutil.copyfile)
        os.replace(staged, target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Copies, says what, and gives the exit status."""
    top = argparse.ArgumentParser(prog="python -m models.copying", description=__doc__)
    top.add_argument("source", type=Path, metavar="SOURCE")
    top.add_argument("target", type=Path, metavar="TARGET")
    given = top.parse_args(arguments)
    for path in unreadable_directories(given.source):
        sys.stderr.write(f"warning: source: {path} cannot be read and is left out\n")
    try:
        copied = copy_bundles(given.source, given.target)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"copied: {', '.join(copied) or 'nothing, all is there'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where bundles lie: NAME/VERSION under one directory, each with a ``model.json``."""

import os
from pathlib import Path


def find_bundles(root: Path) -> dict[str, Path]:
    """The directory of the highest version of every model under ``root``, by name."""
    found: dict[str, Path] = {}
    for card in sorted(root.glob("*/*/model.json")):
        version, name = card.parent, card.parent.parent.name
        highest = int(found[name].name) if name in found else -1
        if version.name.isdecimal() and int(version.name) > highest:
            found[name] = version
    return found


def unreadable_directories(root: Path) -> list[Path]:
    """What is passed over because this process may not look into it: directories down to versions.

    Volumes have some of their own, such as ``lost+found``.
    """
    candidates = [root, *root.glob("*"), *root.glob("*/*")]
    may_be_listed = os.R_OK | os.X_OK
    return [p for p in sorted(candidates) if os.path.isdir(p) and not os.access(p, may_be_listed)]

"""Puts what was measured last into docs/benchmarks.md.

    .venv/bin/python -m benchmarks.page runs/benchmarks

Every NAME.json there fills the part of the page between ``<!-- NAME -->`` and ``<!-- /NAME -->``
with its table, how and where it was measured, and its picture; what is around stays as it is.
"""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import plots

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


class PageError(ValueError):
    """A part of the page cannot be filled."""


def renew(page: Path, directory: Path) -> list[str]:
    """Fills the parts of the page whose results lie in ``directory``, and gives their names.

    Raises:
        PageError: if there are no results, or some that the page has no part for.
    """
    measured = sorted(directory.glob("*.json"))
    if not measured:
        raise PageError(f"{directory}: expected results as NAME.json, found none")
    text = page.read_text(encoding="utf-8")
    for path in measured:
        results = json.loads(path.read_text(encoding="utf-8"))
        text = fill(text, path.stem, part(path.stem, results, page.parent / page.stem))
    page.write_text(text, encoding="utf-8")
    return [path.stem for path in measured]


def fill(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between the marks of that name.

    Raises:
        PageError: if they are not there, once each.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    found = re.findall(f"{begin}.*?{end}", text, re.DOTALL)
    if len(found) != 1:
        raise PageError(f"expected {begin} and {end} once in the page, got {len(found)} of them")
    return text.replace(found[0], f"{begin}\n{content}\n{end}")


def part(name: str, results: Mapping[str, Any], pictures: Path) -> str:
    """Table, circumstances and picture of one measurement; draws the picture."""
    parts = [results["table"], circumstances(results["machine"])]
    if draw := plots.PLOTS.get(name):
        pictures.mkdir(parents=True, exist_ok=True)
        title = draw(pictures / f"{name}.svg", results)
        parts.append(f"![{title}]({pictures.name}/{name}.svg)")
    return "\n\n".join(parts)


def circumstances(machine: Mapping[str, Any]) -> str:
    """The command, the machine and what ran on it, as a sentence."""
    known = {"cpu", "num_cpus", "load_before", "command", "python"}
    versions = []
    for name, version in machine.items():
        if name not in known:
            # Contestants that are versions of one library say what they are in a mapping.
            pairs = version.items() if isinstance(version, dict) else [(name, version)]
            versions += [f"{library} {number}" for library, number in pairs]
    return (
        f"`{machine['command']}` on {machine['num_cpus']} cores of {machine['cpu']}, load "
        f"{machine['load_before']:.1f} before; Python {machine['python']}, {', '.join(versions)}."
    )


def main() -> None:
    """Renews the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where the results are, as NAME.json")
    try:
        renew(PAGE, parser.parse_args().directory)
    except PageError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()

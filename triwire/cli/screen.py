"""Where output goes: its width, its colours, and text that is safe to show there."""

import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Colors = Literal["none", "256", "true"]
# What stands for a symbol that would not be seen.
SHOWN = {" ": "␣", "\n": "⏎", "\t": "⇥", "<mask>": "_"}
PLAIN = {" ": "' '", "\n": r"\n", "\t": r"\t", "<mask>": "_"}
# Legends and names of columns need so much, however narrow a terminal is.
NARROWEST = 30
EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """A terminal, or what stands in its place: its columns, its colours, whether it has Unicode."""

    width: int = 80
    colors: Colors = "none"
    is_unicode: bool = True

    def write(self, *lines: str) -> None:
        """Writes whole lines."""
        sys.stdout.writelines(f"{line}\n" for line in lines)

    def write_piece(self, text: str) -> None:
        """Writes a part of a line, at once."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def symbol(self, token: str) -> str:
        """A token that can be seen."""
        names = SHOWN if self.is_unicode else PLAIN
        return names.get(token) or visible(token)

    def bar(self, share: float, width: int) -> str:
        """A bar as long as ``share`` of ``width``, to an eighth of a column."""
        if not self.is_unicode:
            return "#" * round(share * width)
        whole, eighths = divmod(round(share * width * 8), 8)
        return EIGHTHS[-1] * whole + EIGHTHS[eighths].strip()


def detect(color: str, environment: Mapping[str, str]) -> Screen:
    """What standard output is; ``color`` is "auto", "always" or "never"."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return Screen(
        width=max(shutil.get_terminal_size().columns, NARROWEST),
        colors=_colors(color, environment),
        is_unicode=encoding.startswith("utf"),
    )


def _colors(color: str, environment: Mapping[str, str]) -> Colors:
    if color == "never" or (color == "auto" and not _wants_color(environment)):
        return "none"
    if environment.get("COLORTERM") in ("truecolor", "24bit") or "WT_SESSION" in environment:
        return "true"
    is_known = "256color" in environment.get("TERM", "")
    return "256" if is_known or color == "always" else "none"


def _wants_color(environment: Mapping[str, str]) -> bool:
    """Whether a terminal is there that shows colours, and nobody asked for none (no-color.org)."""
    is_terminal = sys.stdout.isatty() and environment.get("TERM") != "dumb"
    return is_terminal and not environment.get("NO_COLOR")


def visible(text: str) -> str:
    """A text without what a terminal would obey or not show: controls, as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def width_of(text: str) -> int:
    """How many columns a text takes."""
    return sum(_width_of_character(char) for char in text)


def _width_of_character(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, width: int, align: str = "<") -> str:
    """A text with spaces, on its left where ``align`` is ">", up to a number of columns."""
    spaces = " " * (width - width_of(text))
    return spaces + text if align == ">" else text + spaces


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "", gap: str = "  "
) -> list[str]:
    """Lines of columns; ``align`` has "<" or ">" for each, the first being "<" by default."""
    cells = [list(header), *map(list, rows)]
    aligned = align.ljust(len(header), "<")
    widths = [max(width_of(row[column]) for row in cells) for column in range(len(header))]
    lines = (gap.join(map(pad, row, widths, aligned)).rstrip() for row in cells)
    return [line for line in lines if line]

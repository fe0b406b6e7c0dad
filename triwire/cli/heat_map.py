"""Weights as a map of characters: coloured blocks where there are colours, else digits."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from triwire.cli.screen import Screen, pad, width_of

# From none to the most: red, green and blue of the colours between which those of cells lie.
RAMP = ((28, 28, 46), (52, 73, 158), (38, 152, 158), (133, 203, 84), (252, 231, 76))
LEVELS = 9
BLOCK = "█"
MAX_LABEL = 12
Cell = Callable[[float, int], str]


def draw(
    screen: Screen, weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> Iterator[str]:
    """The lines of a map; where it is wider than the screen, columns go on further below."""
    most = float(weights.max(initial=0.0))
    scaled = weights / most if most > 0 else weights
    margin = min(max(map(width_of, rows), default=0), MAX_LABEL)
    size = max(map(width_of, columns), default=1) + (screen.colors == "none" or 1)
    per_band = max((screen.width - margin - 1) // size, 1)
    cell = _cell(screen)
    for start in range(0, len(columns), per_band):
        band = slice(start, start + per_band)
        if len(columns) > per_band:
            yield f"columns {start} to {min(start + per_band, len(columns)) - 1}"
        header = "".join(pad(label, size, ">") for label in columns[band])
        yield f"{pad('', margin)} {header}".rstrip()
        for label, row in zip(rows, scaled[:, band], strict=True):
            cells = "".join(cell(float(value), size) for value in row)
            yield f"{pad(label, margin, '>')} {cells}".rstrip()
    yield _legend(screen, most)


def _cell(screen: Screen) -> Cell:
    """What writes a value from 0 to 1 into so many columns."""
    if screen.colors == "none":
        return lambda value, size: _digit(value).rjust(size)
    paint = {"256": _paint_256, "true": _paint_true}[screen.colors]
    block = BLOCK if screen.is_unicode else "#"
    return lambda value, size: f"{paint(_color(value))}{block * size}\x1b[0m"


def _digit(value: float) -> str:
    level = round(value * LEVELS)
    return str(level) if level else "."


def _color(value: float) -> tuple[int, int, int]:
    """The colour on the ramp for a value from 0 to 1."""
    place = min(max(value, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    share = place - low
    red, green, blue = (
        round(a + share * (b - a)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True)
    )
    return red, green, blue


def _paint_true(color: tuple[int, int, int]) -> str:
    red, green, blue = color
    return f"\x1b[38;2;{red};{green};{blue}m"


def _paint_256(color: tuple[int, int, int]) -> str:
    """The nearest colour of the cube of six steps that terminals with 256 colours have."""
    red, green, blue = (round(part / 255 * 5) for part in color)
    return f"\x1b[38;5;{16 + 36 * red + 6 * green + blue}m"


def _legend(screen: Screen, most: float) -> str:
    cell = _cell(screen)
    steps = "".join(cell(level / LEVELS, 1) for level in range(LEVELS + 1))
    return f"{steps} from 0 to {most:.3f}"

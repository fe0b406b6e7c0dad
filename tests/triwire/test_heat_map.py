"""Maps and tables, whatever the terminal can show."""

import re
import sys

import numpy as np
import pytest

from triwire.cli.heat_map import draw
from triwire.cli.screen import Screen, detect, table, visible, width_of

DIAGONAL = np.array([[0.9, 0.0, 0.1], [0.1, 0.5, 0.1]], np.float32)
COLOR = r"\x1b\[38;5;(\d+)m|\x1b\[38;2;(\d+);(\d+);(\d+)m"


def test_without_colours_weights_are_digits_of_the_most():
    assert list(draw(Screen(), DIAGONAL, ["x", "y"], ["a", "b", "c"])) == [
        "   a b c",
        "x  9 . 1",
        "y  1 5 1",
        ".123456789 from 0 to 0.900",
    ]


@pytest.mark.parametrize("colors", ["256", "true"])
def test_with_colours_weights_are_blocks_that_grow_lighter(colors):
    screen = Screen(colors=colors)
    header, first, *_, legend = draw(screen, DIAGONAL, ["x", "y"], ["a", "b", "c"])
    assert header == "   a b c"
    assert re.sub(r"\x1b\[[\d;]*m", "", first) == "x ██████"
    assert first.endswith("\x1b[0m")
    most, none, little = re.findall(COLOR, first)
    assert len({most, none, little}) == 3
    assert len(set(re.findall(COLOR, legend))) >= 7
    assert legend.endswith("from 0 to 0.900")


@pytest.mark.parametrize("width", [30, 33, 80, 200])
def test_a_map_that_is_wider_than_the_screen_goes_on_below(width):
    weights = np.eye(50, dtype=np.float32)
    names = [chr(ord("A") + index) for index in range(50)]
    lines = list(draw(Screen(width=width), weights, names, names))
    assert max(map(width_of, lines)) <= width
    shown = sum(line.count("9") for line in lines[:-1] if not line.startswith("columns"))
    assert shown == 50
    headers = [line.split() for line in lines if line.startswith("  ")]
    assert [name for header in headers for name in header] == names


def test_long_names_and_wide_characters_stand_in_their_columns():
    header, row, _ = draw(Screen(), np.ones((1, 2)), ["AE1"], ["語", "K"])
    assert header == "     語  K"
    assert row == "AE1   9  9"


def test_a_map_of_nothing_is_no_division_by_zero():
    assert list(draw(Screen(), np.zeros((1, 1)), ["x"], ["a"]))[1] == "x  ."


@pytest.mark.parametrize(
    ("color", "variables", "is_terminal", "expected"),
    [
        ("auto", {"TERM": "xterm-256color"}, True, "256"),
        ("auto", {"TERM": "xterm", "COLORTERM": "truecolor"}, True, "true"),
        ("auto", {"TERM": "xterm"}, True, "none"),
        ("auto", {"TERM": "dumb", "COLORTERM": "truecolor"}, True, "none"),
        ("auto", {"TERM": "xterm-256color", "NO_COLOR": "1"}, True, "none"),
        ("auto", {"TERM": "xterm-256color", "NO_COLOR": ""}, True, "256"),
        ("auto", {"TERM": "xterm-256color"}, False, "none"),
        ("always", {"NO_COLOR": "1"}, False, "256"),
        ("never", {"TERM": "xterm-256color", "COLORTERM": "truecolor"}, True, "none"),
    ],
)
def test_colours_are_those_of_the_terminal(monkeypatch, color, variables, is_terminal, expected):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert detect(color, variables).colors == expected


def test_what_cannot_be_seen_is_written_out():
    assert visible("a\x1b[2J\u202e\né") == r"a\x1b[2J\u202e\né"
    screen, plain = Screen(), Screen(is_unicode=False)
    assert [screen.symbol(token) for token in (" ", "\n", "<mask>", "é")] == ["␣", "⏎", "_", "é"]
    assert [plain.symbol(token) for token in (" ", "\n", "a")] == ["' '", r"\n", "a"]


def test_bars_are_as_long_as_what_they_show():
    assert Screen().bar(0.5, 4) == "██"
    assert Screen().bar(0.6, 4) == "██▍"
    assert Screen().bar(0.0, 4) == ""
    assert Screen(is_unicode=False).bar(0.5, 4) == "##"


def test_a_table_keeps_its_columns():
    assert table(["word", "n"], [["語", "1"], ["longer", "23"]], "<>") == [
        "word     n",
        "語       1",
        "longer  23",
    ]

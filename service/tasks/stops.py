"""Strings that end a text, found while it grows: a character at a time, in constant time each.

Source: Knuth, Morris and Pratt (1977), "Fast pattern matching in strings", SIAM J. Comput. 6 (2).
"""

from collections.abc import Sequence


class Stop:
    """A string that ends a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        # For every beginning of the string, the longest shorter one that it ends with.
        self._borders = [0]
        for character in text[1:]:
            self._borders.append(self.match(self._borders[-1], character))

    def match(self, matched: int, character: str) -> int:
        """How much of the string a text ends with, given how much before its last character."""
        while matched and self.text[matched] != character:
            matched = self._borders[matched - 1]
        return matched + (self.text[matched] == character)


class StopSearch:
    """The search for any of some strings in one text, which is over once one is found."""

    def __init__(self, stops: Sequence[Stop]) -> None:
        self._stops = stops
        self._matched = [0] * len(stops)

    @property
    def num_open(self) -> int:
        """How many characters at the end of the text may turn out to begin a stop."""
        return max(self._matched, default=0)

    def add(self, character: str) -> int | None:
        """Takes the next character; the length of the longest stop that it completes, if any."""
        self._matched = [
            stop.match(matched, character)
            for stop, matched in zip(self._stops, self._matched, strict=True)
        ]
        complete = [
            matched
            for stop, matched in zip(self._stops, self._matched, strict=True)
            if matched == len(stop.text)
        ]
        return max(complete, default=None)

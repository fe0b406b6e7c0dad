"""Where a text ends before its model ends it: at the first of some strings, which are left out."""

from collections.abc import Sequence
from dataclasses import replace

from service.tasks.hugging_face.written import StreamDetails, StreamEvent, Token


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop begins that is complete first in ``text``; None if there is none."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def keep_until(tokens: Sequence[Token], end: int) -> list[Token]:
    """The tokens of the first ``end`` characters of their text; the last of them may be cut."""
    kept, begin = [], 0
    for token in tokens:
        if begin >= end:
            break
        kept.append(replace(token, text=token.text[: end - begin]))
        begin += len(token.text)
    return kept


class Tail:
    """The end of a stream, which is held back while a stop might begin in it.

    The last token that no stop can take back is held as well, since the one that proves to be the
    last of all is told with the whole text. ``text`` and ``num_tokens`` are what was written so
    far, up to the stop.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[StreamEvent] = []
        # Where the first of them begins in the text.
        self._begin = 0
        self.text = ""
        self.num_tokens = 0
        self.has_stopped = False

    def add(self, event: StreamEvent) -> list[StreamEvent]:
        """Takes a token; gives those that can be told now."""
        self._held.append(event)
        self.text += event.token.text
        self.num_tokens += 1
        stop_at = find_stop(self.text, self._stops)
        if stop_at is not None:
            self._stop(stop_at)
            return []
        safe = len(self.text) - self._overlap()
        ready: list[StreamEvent] = []
        while len(self._held) > 1 and self._end_of_second() <= safe:
            ready.append(self._held.pop(0))
            self._begin += len(ready[-1].token.text)
        return ready

    def finish(self, details: StreamDetails, *, prefix: str, end: Token) -> list[StreamEvent]:
        """What is held back, the last of it with the whole text after ``prefix``.

        Where nothing was written, that is told of the token ``end``.
        """
        nothing = StreamEvent(index=1, token=end, generated_text=None, details=None)
        *others, last = self._held or [nothing]
        return [*others, replace(last, generated_text=prefix + self.text, details=details)]

    def _stop(self, stop_at: int) -> None:
        self.has_stopped = True
        self.text = self.text[:stop_at]
        kept = keep_until([event.token for event in self._held], stop_at - self._begin)
        self.num_tokens -= len(self._held) - len(kept)
        # Where the stop takes everything back, what it began with is told as an end without text.
        first = self._held[0].token
        told = kept or [replace(first, text="", special=True)]
        self._held = [
            replace(event, token=token) for event, token in zip(self._held, told, strict=False)
        ]

    def _end_of_second(self) -> int:
        return self._begin + sum(len(event.token.text) for event in self._held[:2])

    def _overlap(self) -> int:
        """How much of the end of the text may be the beginning of a stop."""
        lengths = (
            length
            for stop in self._stops
            for length in range(1, len(stop))
            if self.text.endswith(stop[:length])
        )
        return max(lengths, default=0)

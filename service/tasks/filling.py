"""The best joint reading of a text with masks: the surest is filled first, again and again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.batches import Ticket
from service.registry import LoadedModel
from service.tasks.context import Context
from service.tasks.masked_text import MaskedText, window
from service.tasks.reading import Belief, Reading, read_spans, windows


@dataclass(frozen=True, slots=True)
class Filling:
    """A text on its way from masked to filled; ``open`` are the masks that are left, in order."""

    tokens: np.ndarray
    open: dict[int, Belief]

    def advance(self, first_id: int) -> list[int]:
        """Fills masks, the surest first, until others must be read again; gives those.

        They are the masks whose window holds what was just filled: nothing else changes what the
        model sees of a mask. Symbols before ``first_id`` are never filled in.
        """
        stale: list[int] = []
        while self.open and not stale:
            filled = self._settle(first_id)
            stale = [
                position
                for position, belief in self.open.items()
                if belief.window.start <= filled < belief.window.end
            ]
        return stale

    def _settle(self, first_id: int) -> int:
        """Fills the mask whose likeliest symbol, from ``first_id`` on, is the likeliest of all."""
        position = self._surest(first_id)
        probs = self.open.pop(position).probs[first_id:]
        self.tokens[position] = first_id + int(probs.argmax())
        return position

    def _surest(self, first_id: int) -> int:
        positions = list(self.open)
        if len(positions) == 1:
            return positions[0]
        probs = np.stack([belief.probs[first_id:] for belief in self.open.values()])
        return positions[int(probs.max(axis=1).argmax())]


async def fill(
    context: Context,
    model: LoadedModel,
    texts: list[MaskedText],
    readings: list[Reading],
    ticket: Ticket,
) -> list[str]:
    """Every text with its masks filled: the surest one is settled, then those near it read again.

    Texts advance together, so that they share batches. An unknown token is never filled in.
    """
    vocabulary, size = model.card.vocabulary, model.card.limits["max_len"]
    first_id = 1 if vocabulary.has_unknown else 0
    fillings = [
        Filling(text.tokens.copy(), _beliefs(reading, text.positions, text.tokens.size, size))
        for text, reading in zip(texts, readings, strict=True)
    ]
    while waiting := [(f, stale) for f in fillings if (stale := f.advance(first_id))]:
        tokens = [filling.tokens for filling, _ in waiting]
        wanted = [windows(stale, filling.tokens.size, size) for filling, stale in waiting]
        again = await read_spans(context, model, tokens, wanted, ticket)
        for (filling, stale), reading in zip(waiting, again, strict=True):
            filling.open.update(_beliefs(reading, stale, filling.tokens.size, size))
    return [vocabulary.decode(filling.tokens) for filling in fillings]


def _beliefs(
    reading: Reading, positions: Sequence[int], num_tokens: int, size: int
) -> dict[int, Belief]:
    return {p: reading.belief(p, window(p, num_tokens, size)) for p in positions}

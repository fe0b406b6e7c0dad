"""Texts with masks: where the masks are, and which window of the text each is read in."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.vocabulary import MASK
from service.errors import InvalidInput, excerpt
from service.registry import LoadedModel
from service.tasks.context import encode_text


class Span(NamedTuple):
    """The tokens from ``start`` up to ``end`` of a text."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedText:
    """A text as token ids, with the position of every mask and where it was in the text as sent."""

    tokens: np.ndarray
    positions: list[int]
    origins: list[tuple[int, int]]


def parse(text: str, mask_token: str, model: LoadedModel, max_masks: int, param: str) -> MaskedText:
    """``text`` as token ids; what lies between masks is normalised as in training.

    Raises:
        InvalidInput: if there is no mask, or more than ``max_masks``, or a symbol is missing from
            the vocabulary.
    """
    parts = text.split(mask_token)
    num_masks = len(parts) - 1
    if not 1 <= num_masks <= max_masks:
        raise InvalidInput(
            f"expected 1 to {max_masks} masks {excerpt(mask_token)}, got {num_masks}", param
        )
    mask = np.array([model.card.vocabulary.special_id(MASK)], dtype=np.int32)
    tokens: list[np.ndarray] = []
    positions, starts = [], []
    position = start = 0
    for part in parts:
        encoded = encode_text(model, part, param, start=position)
        tokens += [encoded, mask]
        positions.append(position + encoded.size)
        starts.append(start + len(part))
        position, start = positions[-1] + 1, starts[-1] + len(mask_token)
    # No mask comes after the last part.
    return MaskedText(
        tokens=np.concatenate(tokens[:-1]),
        positions=positions[:-1],
        origins=[(start, start + len(mask_token)) for start in starts[:-1]],
    )


def window(position: int, num_tokens: int, size: int) -> Span:
    """The ``size`` tokens around a position: it is their middle, except near an end of the text.

    A text that is no longer than that is one window.
    """
    start = max(min(position - size // 2, num_tokens - size), 0)
    return Span(start, min(start + size, num_tokens))


def left_of(position: int, span: Span) -> Span:
    """What a mask at ``position`` has on its left in ``span``, and the mask itself."""
    return Span(span.start, position + 1)


def right_of(position: int, span: Span) -> Span:
    """What a mask at ``position`` has on its right in ``span``, and the mask itself."""
    return Span(position, span.end)

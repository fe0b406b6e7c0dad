"""Passes over texts with masks: every mask in its window and, for evidence, each side by itself.

A pass computes what it is asked for: the distributions at a few masks, or at every position where
a text has more masks than that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.batches import Ticket
from service.errors import TooLarge
from service.programs import Result
from service.registry import LoadedModel
from service.tasks.context import Context
from service.tasks.masked_text import MaskedText, Span, left_of, right_of, window

PROGRAM = "fill-mask"
PROGRAM_OF_MANY = "fill-mask+many"
PROGRAM_WITH_ATTENTION = "fill-mask+attention"
# The most masks of a pass that computes nothing else.
FEW = 8

# The positions that are asked for, by the span in which each is to be read.
Wanted = Mapping[Span, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Belief:
    """The distribution of one mask over the symbols, as read in ``window``."""

    window: Span
    probs: np.ndarray

    @property
    def entropy(self) -> float:
        """Its entropy, in nats."""
        probs = self.probs.astype(np.float64)
        # Where a probability is 0, this adds 0; leaving those out takes longer.
        return -float(probs @ np.log(np.maximum(probs, np.finfo(np.float64).tiny)))


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of the passes over one text, by the span that each read.

    ``probs`` has a row for each of ``positions``, where a pass was asked for those alone, and else
    for every position of the span.
    """

    outputs: dict[Span, Result]
    positions: dict[Span, Sequence[int]] = field(default_factory=dict)

    def belief(self, position: int, span: Span) -> Belief:
        """What reading ``span`` says of the mask at ``position``."""
        asked = self.positions.get(span)
        row = position - span.start if asked is None else asked.index(position)
        return Belief(span, self.outputs[span]["probs"][row])


async def read_texts(
    context: Context,
    model: LoadedModel,
    texts: Sequence[MaskedText],
    ticket: Ticket,
    *,
    attention: bool,
    evidence: bool,
) -> list[Reading]:
    """Reads every mask in its window and, for ``evidence``, each side of it by itself.

    All of it goes to the device at once; only the passes that give ``attention`` are a batch of
    their own.

    Raises:
        TooLarge: if these are more passes than may wait for the device.
    """
    size = model.card.limits["max_len"]
    whole = [windows(text.positions, text.tokens.size, size) for text in texts]
    tokens = [text.tokens for text in texts]
    if not evidence:
        program = PROGRAM_WITH_ATTENTION if attention else PROGRAM
        return await read_spans(context, model, tokens, whole, ticket, program)
    sides = list(map(_sides, whole))
    if not attention:
        wanted = list(map(_together, whole, sides))
        return await read_spans(context, model, tokens, wanted, ticket)
    readings = await read_spans(context, model, tokens, whole, ticket, PROGRAM_WITH_ATTENTION)
    others = await read_spans(context, model, tokens, sides, ticket)
    # Where one side is the whole window, the pass that also gave attention counts.
    return [
        Reading(
            other.outputs | reading.outputs,
            {span: p for span, p in other.positions.items() if span not in reading.outputs},
        )
        for reading, other in zip(readings, others, strict=True)
    ]


def windows(positions: Sequence[int], num_tokens: int, size: int) -> Wanted:
    """Every position in its window of a text."""
    if num_tokens <= size:
        return {Span(0, num_tokens): positions}
    wanted: dict[Span, list[int]] = {}
    for position in positions:
        wanted.setdefault(window(position, num_tokens, size), []).append(position)
    return wanted


def _sides(whole: Wanted) -> Wanted:
    """Every position at the end of what is left of it, and at the beginning of what is right."""
    sides = [
        {side(position, span): [position]}
        for span, positions in whole.items()
        for position in positions
        for side in (left_of, right_of)
    ]
    return _together(*sides)


def _together(*several: Wanted) -> Wanted:
    """All that is wanted, each once."""
    wanted: dict[Span, list[int]] = {}
    for one in several:
        for span, positions in one.items():
            own = wanted.setdefault(span, [])
            own += [position for position in positions if position not in own]
    return wanted


async def read_spans(
    context: Context,
    model: LoadedModel,
    texts: Sequence[np.ndarray],
    wanted: Sequence[Wanted],
    ticket: Ticket,
    program: str = PROGRAM,
) -> list[Reading]:
    """Reads the spans that are wanted of every text, each once, in shared batches.

    Short spans of a text go into the batch of its longest, rather than wait for one of their own.
    """
    num_passes, limit = sum(map(len, wanted)), context.settings.max_queue_rows
    if num_passes > limit:
        raise TooLarge(
            f"expected masks and sides that take at most {limit} passes, got {num_passes}; send "
            "fewer texts or masks",
            "inputs",
        )
    most = max((len(positions) for own in wanted for positions in own.values()), default=0)
    if program == PROGRAM and most > FEW:
        program = PROGRAM_OF_MANY
    rows, sizes = [], []
    for tokens, own in zip(texts, wanted, strict=True):
        for span, positions in own.items():
            row = {"tokens": tokens[span.start : span.end]}
            if program == PROGRAM:
                row["positions"] = np.array([p - span.start for p in positions], np.int32)
            rows.append(row)
        sizes += [max(end - start for start, end in own)] * len(own)
    outputs = iter(await context.run(model, program, rows, ticket, sizes=sizes))
    positions = [dict(own) if program == PROGRAM else {} for own in wanted]
    return [
        Reading({span: next(outputs) for span in own}, asked)
        for own, asked in zip(wanted, positions, strict=True)
    ]

"""Passes over texts with masks: every mask in its window and, for evidence, each side by itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from service.batcher import Ticket
from service.engine import Result
from service.errors import TooLarge
from service.registry import LoadedModel
from service.tasks.context import Context
from service.tasks.masked_text import MaskedText, Span, left_of, right_of, window

PROGRAM = "fill-mask"
PROGRAM_WITH_ATTENTION = "fill-mask+attention"


@dataclass(frozen=True, slots=True)
class Belief:
    """The distribution of one mask over the symbols, as read in ``window``."""

    window: Span
    probs: np.ndarray

    @property
    def entropy(self) -> float:
        """Its entropy, in nats."""
        certain = self.probs[self.probs > 0].astype(np.float64)
        return float(-(certain * np.log(certain)).sum())


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of the passes over one text, by the span that each read."""

    outputs: dict[Span, Result]

    def belief(self, position: int, span: Span) -> Belief:
        """What reading ``span`` says of the mask at ``position``."""
        return Belief(span, self.outputs[span]["probs"][position - span.start])


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
    whole = [list(_windows(text, model)) for text in texts]
    sides = [list(_sides(text, model)) if evidence else [] for text in texts]
    tokens = [text.tokens for text in texts]
    if not attention:
        wanted = [a + b for a, b in zip(whole, sides, strict=True)]
        return await read_spans(context, model, PROGRAM, tokens, wanted, ticket)
    readings = await read_spans(context, model, PROGRAM_WITH_ATTENTION, tokens, whole, ticket)
    if not evidence:
        return readings
    others = await read_spans(context, model, PROGRAM, tokens, sides, ticket)
    # Where one side is the whole window, the pass that also gave attention counts.
    return [
        Reading(other.outputs | reading.outputs)
        for reading, other in zip(readings, others, strict=True)
    ]


def _windows(text: MaskedText, model: LoadedModel) -> Iterator[Span]:
    for position in text.positions:
        yield window(position, text.tokens.size, model.card.limits["max_len"])


def _sides(text: MaskedText, model: LoadedModel) -> Iterator[Span]:
    for position, span in zip(text.positions, _windows(text, model), strict=True):
        yield left_of(position, span)
        yield right_of(position, span)


async def read_spans(
    context: Context,
    model: LoadedModel,
    program: str,
    texts: Sequence[np.ndarray],
    wanted: Sequence[Sequence[Span]],
    ticket: Ticket,
) -> list[Reading]:
    """Reads the spans that are wanted of every text, each once, in shared batches.

    Short spans of a text go into the batch of its longest, rather than wait for one of their own.
    """
    spans = [list(dict.fromkeys(own)) for own in wanted]
    num_passes, limit = sum(map(len, spans)), context.settings.max_queue_rows
    if num_passes > limit:
        raise TooLarge(
            f"expected masks and sides that take at most {limit} passes, got {num_passes}; send "
            "fewer texts or masks",
            "inputs",
        )
    rows, sizes = [], []
    for tokens, own in zip(texts, spans, strict=True):
        rows += [{"tokens": tokens[start:end]} for start, end in own]
        sizes += [max(end - start for start, end in own)] * len(own)
    outputs = iter(await context.run(model, program, rows, ticket, sizes=sizes))
    return [Reading({span: next(outputs) for span in own}) for own in spans]

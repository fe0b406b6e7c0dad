"""Fill-mask: candidates for every mask of a text, and the best joint reading.

Scores are marginals: probabilities over the whole vocabulary for each mask by itself. A text that
is longer than the model's window is never cut: each mask is read in the window centred on it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.checkpoint import ModelCard
from models.encoder import MaskedLanguageModel
from models.vocabulary import MASK, Vocabulary
from service.batcher import Ticket
from service.engine import Program, Ragged, Result, Row, make_grid
from service.errors import InvalidInput, excerpt
from service.registry import LoadedModel
from service.schemas import FillMaskRequest
from service.tasks.attention import AttentionChoice, AttentionMap, choose
from service.tasks.context import Context, encode_text, off_loop

WIRING = "encoder"
DEFAULT_TOP_K = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A symbol with its probability."""

    token: str
    token_id: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskResult:
    """One mask.

    ``position`` counts tokens of the normalised text, where a mask is one; ``window`` is the part
    that was read, counted likewise. ``char_start`` and ``char_end`` count characters of the text
    as sent. ``entropy`` of the whole distribution, in nats.
    """

    index: int
    position: int
    char_start: int
    char_end: int
    window: tuple[int, int]
    entropy: float
    candidates: list[Candidate]


@dataclass(frozen=True, kw_only=True, slots=True)
class FillMaskResult:
    """One text; ``filled`` comes from filling the surest mask first, again and again."""

    normalized: str
    masks: list[MaskResult]
    filled: str
    attention: AttentionMap | None = None


@dataclass(frozen=True, slots=True)
class FillMaskUsage:
    """What was read."""

    input_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FillMaskAnswer:
    """The answer to a fill-mask request."""

    model: str
    version: int
    results: list[FillMaskResult]
    usage: FillMaskUsage


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedText:
    """A text as token ids, with the position of every mask and where it was in the text as sent."""

    tokens: np.ndarray
    positions: list[int]
    origins: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Read:
    """One pass over ``tokens[start:end]`` for the masks at ``positions``."""

    row: Row
    start: int
    end: int
    positions: list[int]


@dataclass(frozen=True, slots=True)
class _Belief:
    """The distribution of one mask, with the (start, end) of the window that it was read in."""

    window: tuple[int, int]
    probs: np.ndarray


@dataclass(frozen=True, slots=True)
class _Reading:
    """The passes over one text, with what came of each."""

    reads: list[_Read]
    outputs: list[Result]

    def beliefs(self) -> dict[int, _Belief]:
        """What was read of every mask, in order of position."""
        return {
            position: _Belief((read.start, read.end), output["probs"][position - read.start])
            for read, output in zip(self.reads, self.outputs, strict=True)
            for position in read.positions
        }


@dataclass(frozen=True, slots=True)
class _Filling:
    """A text on its way from masked to filled; ``open`` are the masks that are left, in order."""

    tokens: np.ndarray
    open: dict[int, _Belief]

    def advance(self, first_id: int) -> list[int]:
        """Fills masks, the surest first, until others must be read again; gives those.

        They are the masks whose window holds what was just filled: nothing else changes what the
        model sees of a mask.
        """
        stale: list[int] = []
        while self.open and not stale:
            filled = self._settle(first_id)
            stale = [
                position
                for position, belief in self.open.items()
                if belief.window[0] <= filled < belief.window[1]
            ]
        return stale

    def _settle(self, first_id: int) -> int:
        """Fills the mask whose likeliest symbol, from ``first_id`` on, is the likeliest of all."""
        probs = np.stack([belief.probs[first_id:] for belief in self.open.values()])
        surest = int(probs.max(axis=1).argmax())
        position = list(self.open)[surest]
        self.tokens[position] = first_id + int(probs[surest].argmax())
        del self.open[position]
        return position


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for an encoder."""
    ragged = Ragged(name="tokens", dtype=np.int32)
    grid = make_grid(
        card.limits["max_len"], batch_sizes=(8, 32), shortest=16, factor=4, max_tokens=4096
    )

    def lean(model: MaskedLanguageModel, *arrays: Any) -> dict[str, Any]:
        return {"probs": model.predict(*arrays)[0]}

    def full(model: MaskedLanguageModel, *arrays: Any) -> dict[str, Any]:
        probs, attention = model.predict(*arrays)
        return {"probs": probs, "attention": attention}

    few = tuple(shape for shape in grid if shape[0] <= 8)
    return (
        Program(name="fill-mask", function=lean, ragged=ragged, grid=grid),
        Program(name="fill-mask+attention", function=full, ragged=ragged, grid=few),
    )


async def fill_mask(context: Context, request: FillMaskRequest, ticket: Ticket) -> FillMaskAnswer:
    """Candidates for every mask, with the best joint reading of every text.

    Raises:
        InvalidInput: if a text holds no mask or too many or a symbol outside the alphabet, or a
            target is no symbol.
    """
    model = context.registry.choose(request.model, WIRING)
    vocabulary, names = model.card.vocabulary, model.card.vocabulary.tokens
    inputs, max_masks = context.texts(request.inputs), context.settings.max_masks
    texts = await off_loop(
        lambda: [parse(t, request.mask_token, model, max_masks, param) for param, t in inputs]
    )
    shown = _shown_ids(request, vocabulary)
    choice = choose(
        request.attention, model.card.config["num_layers"], model.card.config["num_heads"]
    )
    if choice:
        _require_attention_fits(texts, choice, model, context)
    program = "fill-mask+attention" if choice else "fill-mask"
    masked = [(text.tokens, text.positions) for text in texts]
    readings = await _read(context, model, program, masked, ticket)
    filled = await _fill(context, model, texts, readings, ticket)
    results = []
    for text, reading, joint in zip(texts, readings, filled, strict=True):
        attention = None
        if choice:
            tokens = [names[i] for i in text.tokens]
            attention = choice.select(reading.outputs[0]["attention"], tokens, tokens)
        results.append(
            FillMaskResult(
                normalized=vocabulary.decode(text.tokens),
                masks=_mask_results(text, reading, shown, vocabulary),
                filled=joint,
                attention=attention,
            )
        )
    return FillMaskAnswer(
        model=model.card.name,
        version=model.card.version,
        results=results,
        usage=FillMaskUsage(sum(text.tokens.size for text in texts)),
    )


def _require_attention_fits(
    texts: list[MaskedText], choice: AttentionChoice, model: LoadedModel, context: Context
) -> None:
    window = model.card.limits["max_len"]
    for index, text in enumerate(texts):
        if text.tokens.size > window:
            raise InvalidInput(
                f"expected texts of at most {window} tokens where attention is asked for, "
                f"got {text.tokens.size} in inputs[{index}]",
                "attention",
            )
    num_pairs = sum(text.tokens.size**2 for text in texts)
    choice.require_size(num_pairs, context.settings.max_attention_values)


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


async def _read(
    context: Context,
    model: LoadedModel,
    program: str,
    masked: list[tuple[np.ndarray, list[int]]],
    ticket: Ticket,
) -> list[_Reading]:
    """Reads every one of the (tokens, positions of masks) pairs, in shared batches."""
    window = model.card.limits["max_len"]
    reads = [_reads(tokens, positions, window) for tokens, positions in masked]
    rows = [read.row for part in reads for read in part]
    outputs = iter(await context.run(model, program, rows, ticket))
    return [_Reading(part, list(itertools.islice(outputs, len(part)))) for part in reads]


def _reads(tokens: np.ndarray, positions: list[int], window: int) -> list[_Read]:
    """One pass for a text that fits the window, otherwise one for every mask."""
    if tokens.size <= window:
        return [_Read({"tokens": tokens}, 0, tokens.size, positions)]
    reads = []
    for position in positions:
        start = min(max(position - window // 2, 0), tokens.size - window)
        end = start + window
        reads.append(_Read({"tokens": tokens[start:end]}, start, end, [position]))
    return reads


def _shown_ids(request: FillMaskRequest, vocabulary: Vocabulary) -> tuple[np.ndarray, int]:
    """The ids that may be candidates, and how many of them to show."""
    symbols = vocabulary.symbols
    if request.targets is None:
        return np.arange(len(symbols)), min(request.top_k or DEFAULT_TOP_K, len(symbols))
    for index, target in enumerate(request.targets):
        if target not in symbols:
            raise InvalidInput(
                f"expected one of the symbols {vocabulary.alphabet!r}, got {excerpt(target)}",
                f"targets[{index}]",
            )
    if len(set(request.targets)) < len(request.targets):
        raise InvalidInput("expected every target once, got repeated ones", "targets")
    ids = np.array([symbols.index(target) for target in request.targets])
    return ids, min(request.top_k or ids.size, ids.size)


def _mask_results(
    text: MaskedText, reading: _Reading, shown: tuple[np.ndarray, int], vocabulary: Vocabulary
) -> list[MaskResult]:
    each = zip(reading.beliefs().items(), text.origins, strict=True)
    return [
        MaskResult(
            index=index,
            position=position,
            char_start=origin[0],
            char_end=origin[1],
            window=belief.window,
            entropy=entropy(belief.probs),
            candidates=_candidates(belief.probs, *shown, vocabulary),
        )
        for index, ((position, belief), origin) in enumerate(each)
    ]


def entropy(probs: np.ndarray) -> float:
    """Entropy of a distribution, in nats."""
    certain = probs[probs > 0].astype(np.float64)
    return float(-(certain * np.log(certain)).sum())


def _candidates(
    probs: np.ndarray, ids: np.ndarray, count: int, vocabulary: Vocabulary
) -> list[Candidate]:
    best = ids[np.argsort(-probs[ids], kind="stable")[:count]]
    return [Candidate(vocabulary.symbols[i], int(i), float(probs[i])) for i in best]


async def _fill(
    context: Context,
    model: LoadedModel,
    texts: list[MaskedText],
    readings: list[_Reading],
    ticket: Ticket,
) -> list[str]:
    """Every text with its masks filled: the surest one is settled, then those near it read again.

    Texts advance together, so that they share batches. An unknown token is never filled in.
    """
    vocabulary = model.card.vocabulary
    first_id = 1 if vocabulary.has_unknown else 0
    fillings = [
        _Filling(text.tokens.copy(), reading.beliefs())
        for text, reading in zip(texts, readings, strict=True)
    ]
    while waiting := [(f, stale) for f in fillings if (stale := f.advance(first_id))]:
        masked = [(filling.tokens, stale) for filling, stale in waiting]
        again = await _read(context, model, "fill-mask", masked, ticket)
        for (filling, _), reading in zip(waiting, again, strict=True):
            filling.open.update(reading.beliefs())
    return [vocabulary.decode(filling.tokens) for filling in fillings]

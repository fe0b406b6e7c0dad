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
from service.tasks.context import Context, off_loop

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
class _Reading:
    """The passes over one text, with what came of each."""

    reads: list[_Read]
    outputs: list[Result]

    def distributions(self) -> list[np.ndarray]:
        """The distribution of every mask, in order of position."""
        return [
            output["probs"][position - read.start]
            for read, output in zip(self.reads, self.outputs, strict=True)
            for position in read.positions
        ]

    def windows(self) -> list[tuple[int, int]]:
        """What was read for every mask, in order of position."""
        return [(read.start, read.end) for read in self.reads for _ in read.positions]


@dataclass(frozen=True, slots=True)
class _Filling:
    """A text on its way from masked to filled; ``open`` are the masks that are left."""

    tokens: np.ndarray
    open: list[int]

    def settle(self, distributions: list[np.ndarray], first_id: int) -> None:
        """Fills the mask whose likeliest symbol, from ``first_id`` on, is the likeliest of all."""
        probs = np.stack(distributions)[:, first_id:]
        surest = int(probs.max(axis=1).argmax())
        self.tokens[self.open.pop(surest)] = first_id + int(probs[surest].argmax())


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
        InvalidInput: if a text holds no mask or too many, or a target is no symbol.
    """
    model = context.registry.choose(request.model, WIRING)
    vocabulary = model.card.vocabulary
    inputs, max_masks = context.texts(request.inputs), context.settings.max_masks
    texts = await off_loop(
        lambda: [parse(t, request.mask_token, vocabulary, max_masks, param) for param, t in inputs]
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
            tokens = [vocabulary.tokens[i] for i in text.tokens]
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


def parse(
    text: str, mask_token: str, vocabulary: Vocabulary, max_masks: int, param: str
) -> MaskedText:
    """``text`` as token ids; what lies between masks is normalised as in training.

    Raises:
        InvalidInput: if there is no mask, or more than ``max_masks``.
        UnknownSymbolError: if a symbol is missing from the vocabulary.
    """
    parts = text.split(mask_token)
    num_masks = len(parts) - 1
    if not 1 <= num_masks <= max_masks:
        raise InvalidInput(
            f"expected 1 to {max_masks} masks {excerpt(mask_token)}, got {num_masks}", param
        )
    mask = np.array([vocabulary.special_id(MASK)], dtype=np.int32)
    tokens: list[np.ndarray] = []
    positions, starts = [], []
    position = start = 0
    for part in parts:
        encoded = vocabulary.encode(vocabulary.normalize(part).text)
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
    each = zip(
        text.positions, text.origins, reading.windows(), reading.distributions(), strict=True
    )
    return [
        MaskResult(
            index=index,
            position=position,
            char_start=origin[0],
            char_end=origin[1],
            window=window,
            entropy=entropy(probs),
            candidates=_candidates(probs, *shown, vocabulary),
        )
        for index, (position, origin, window, probs) in enumerate(each)
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
    """Every text with its masks filled: the surest one is settled, then the text is read again.

    Texts advance together, so that they share batches. An unknown token is never filled in.
    """
    vocabulary = model.card.vocabulary
    first_id = 1 if vocabulary.has_unknown else 0
    fillings = [_Filling(text.tokens.copy(), list(text.positions)) for text in texts]
    unfinished = fillings
    while unfinished:
        for filling, reading in zip(unfinished, readings, strict=True):
            filling.settle(reading.distributions(), first_id)
        unfinished = [filling for filling in unfinished if filling.open]
        masked = [(filling.tokens, filling.open) for filling in unfinished]
        readings = await _read(context, model, "fill-mask", masked, ticket)
    return [vocabulary.decode(filling.tokens) for filling in fillings]

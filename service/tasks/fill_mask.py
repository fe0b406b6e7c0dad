"""Fill-mask: candidates for every mask of a text, evidence for them, the best joint reading.

Scores are marginals: probabilities over the whole vocabulary for each mask by itself. A text that
is longer than the model's window is never cut: each mask is read in the window centred on it. What
a side of a mask is worth is read from that window cropped behind or before the mask.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.checkpoint import ModelCard
from models.encoder import MaskedLanguageModel
from models.packed import PackedStack, logits_at, pack, symbol_logits
from models.vocabulary import Vocabulary
from service.batches import Ticket
from service.errors import InvalidInput, excerpt
from service.programs import Program, Ragged, longest_of, make_grid
from service.registry import LoadedModel
from service.schemas import FillMaskRequest
from service.tasks.attention import AttentionChoice, AttentionMap, choose
from service.tasks.context import Context, off_loop
from service.tasks.filling import fill
from service.tasks.masked_text import MaskedText, Span, left_of, parse, right_of, window
from service.tasks.reading import (
    FEW,
    PROGRAM,
    PROGRAM_OF_MANY,
    PROGRAM_WITH_ATTENTION,
    Reading,
    read_texts,
)

WIRING = "encoder"
DEFAULT_TOP_K = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A symbol with its probability."""

    token: str
    token_id: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What the tokens of ``window`` alone say of a mask, which is one of them.

    ``scores`` are the probabilities of the mask's candidates, in their order; ``entropy`` is that
    of the whole distribution, in nats.
    """

    window: tuple[int, int]
    entropy: float
    scores: list[float]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What each side of a mask was worth, and both.

    ``left`` ends with the mask and ``right`` begins with it; where a side is empty, that is the
    mask by itself.
    """

    left: Side
    right: Side
    both: Side


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
    evidence: Evidence | None = None


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


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for an encoder."""
    ragged = Ragged(name="tokens", dtype=np.int32)
    grid = make_grid(card.limits["max_len"], batch_sizes=(4, 16), shortest=16, factor=2)

    def at_masks(packed: PackedStack, *arrays: Any) -> dict[str, Any]:
        return {"probs": _softmax(logits_at(packed, *arrays))}

    def everywhere(packed: PackedStack, *arrays: Any) -> dict[str, Any]:
        return {"probs": _softmax(symbol_logits(packed, *arrays))}

    arrays = {"positions": np.full(FEW, -1, np.int32)}
    # Rows of padding have no mask, and nothing would be computed for them.
    trial = {"positions": np.zeros(1, np.int32)}

    def full(model: MaskedLanguageModel, *arrays: Any) -> dict[str, Any]:
        probs, attention = model.predict(*arrays)
        return {"probs": probs, "attention": attention}

    seldom = functools.partial(Program, ragged=ragged, grid=longest_of(grid, 1), is_on_demand=True)
    return (
        Program(
            name=PROGRAM,
            function=at_masks,
            ragged=ragged,
            arrays=lambda _: arrays,
            trial=trial,
            grid=grid,
            pack=pack,
        ),
        seldom(name=PROGRAM_OF_MANY, function=everywhere, pack=pack),
        seldom(name=PROGRAM_WITH_ATTENTION, function=full),
    )


def _softmax(logits: jax.Array) -> jax.Array:
    return jax.nn.softmax(logits.astype(jnp.float32), axis=-1)


async def fill_mask(context: Context, request: FillMaskRequest, ticket: Ticket) -> FillMaskAnswer:
    """Candidates for every mask, with the best joint reading of every text.

    Raises:
        InvalidInput: if a text holds no mask or too many or a symbol outside the alphabet, or a
            target is no symbol.
        TooLarge: if the masks take more passes, or the attention more values, than one request may.
    """
    model = context.registry.choose(request.model, WIRING)
    vocabulary = model.card.vocabulary
    inputs, max_masks = context.texts(request.inputs), context.settings.max_masks
    texts = await off_loop(
        lambda: [parse(t, request.mask_token, model, max_masks, param) for param, t in inputs],
        size=sum(len(text) for _, text in inputs),
    )
    shown = _shown_ids(request, vocabulary)
    choice = choose(
        request.attention, model.card.config["num_layers"], model.card.config["num_heads"]
    )
    if choice:
        _require_attention_fits(texts, choice, model, context)
    readings = await read_texts(
        context, model, texts, ticket, attention=bool(choice), evidence=request.evidence
    )
    filled = await fill(context, model, texts, readings, ticket)
    read = list(zip(texts, readings, filled, strict=True))

    def results() -> list[FillMaskResult]:
        return [_result(*one, model, shown, choice, evidence=request.evidence) for one in read]

    return FillMaskAnswer(
        model=model.card.name,
        version=model.card.version,
        # Attention maps are large enough to be cut and encoded in a thread.
        results=await off_loop(results) if choice else results(),
        usage=FillMaskUsage(sum(text.tokens.size for text in texts)),
    )


def _result(
    text: MaskedText,
    reading: Reading,
    filled: str,
    model: LoadedModel,
    shown: tuple[np.ndarray | None, int],
    choice: AttentionChoice | None,
    *,
    evidence: bool,
) -> FillMaskResult:
    vocabulary = model.card.vocabulary
    return FillMaskResult(
        normalized=vocabulary.decode(text.tokens),
        masks=[
            _mask_result(index, text, reading, model, shown, evidence=evidence)
            for index in range(len(text.positions))
        ],
        filled=filled,
        attention=_attention(text, reading, choice, vocabulary) if choice else None,
    )


def _require_attention_fits(
    texts: list[MaskedText], choice: AttentionChoice, model: LoadedModel, context: Context
) -> None:
    limit = model.card.limits["max_len"]
    for index, text in enumerate(texts):
        if text.tokens.size > limit:
            raise InvalidInput(
                f"expected texts of at most {limit} tokens where attention is asked for, "
                f"got {text.tokens.size} in inputs[{index}]",
                "attention",
            )
    num_pairs = sum(text.tokens.size**2 for text in texts)
    choice.require_size(num_pairs, context.settings.max_attention_values)


def _attention(
    text: MaskedText, reading: Reading, choice: AttentionChoice, vocabulary: Vocabulary
) -> AttentionMap:
    tokens = [vocabulary.tokens[i] for i in text.tokens]
    weights = reading.outputs[Span(0, len(tokens))]["attention"]
    return choice.select(weights, tokens, tokens)


def _shown_ids(request: FillMaskRequest, vocabulary: Vocabulary) -> tuple[np.ndarray | None, int]:
    """The ids that may be candidates, None where all may, and how many of them to show."""
    symbols = vocabulary.symbols
    if request.targets is None:
        return None, min(request.top_k or DEFAULT_TOP_K, len(symbols))
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


def _mask_result(
    index: int,
    text: MaskedText,
    reading: Reading,
    model: LoadedModel,
    shown: tuple[np.ndarray | None, int],
    *,
    evidence: bool,
) -> MaskResult:
    position, (start, end) = text.positions[index], text.origins[index]
    span = window(position, text.tokens.size, model.card.limits["max_len"])
    belief = reading.belief(position, span)
    symbols = model.card.vocabulary.symbols
    best = _likeliest(belief.probs[: len(symbols)], *shown)
    return MaskResult(
        index=index,
        position=position,
        char_start=start,
        char_end=end,
        window=(span.start, span.end),
        entropy=belief.entropy,
        candidates=[
            Candidate(symbols[i], i, score)
            for i, score in zip(best.tolist(), belief.probs[best].tolist(), strict=True)
        ],
        evidence=_evidence(reading, position, span, best) if evidence else None,
    )


def _likeliest(probs: np.ndarray, ids: np.ndarray | None, count: int) -> np.ndarray:
    """The ``count`` likeliest of ``ids``, or of all symbols; equal ones in their own order."""
    if ids is None:
        return (-probs).argsort(kind="stable")[:count]
    return ids[(-probs[ids]).argsort(kind="stable")[:count]]


def _evidence(reading: Reading, position: int, span: Span, ids: np.ndarray) -> Evidence:
    """What the left side of a mask, the right side and both give the symbols ``ids``."""

    def side(part: Span) -> Side:
        belief = reading.belief(position, part)
        return Side(
            window=(part.start, part.end), entropy=belief.entropy, scores=belief.probs[ids].tolist()
        )

    return Evidence(side(left_of(position, span)), side(right_of(position, span)), side(span))

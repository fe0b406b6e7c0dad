"""Decode: sources through an encoder-decoder, greedily, with cross-attention on request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.checkpoint import ModelCard
from models.encoder_decoder import EncoderDecoder
from service.batcher import Ticket
from service.engine import Program, Ragged, Result, Row, make_grid
from service.registry import LoadedModel
from service.schemas import DecodeRequest
from service.tasks.attention import AttentionChoice, AttentionMap, choose
from service.tasks.context import Context, encode_text, off_loop, require_length

WIRING = "encoder-decoder"


@dataclass(frozen=True, slots=True)
class DecodedToken:
    """A token with the natural logarithm of its probability."""

    token: str
    logprob: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """Where the last layer's cross-attention, averaged over heads, looks.

    For every target token, the source position with the most weight, and that weight. Where the
    task fixes the true alignment: the share of tokens that look there, and the mean weight there.
    """

    source_positions: list[int]
    weights: list[float]
    hit_rate: float | None = None
    mean_weight: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeResult:
    """One decoded source; ``finish_reason`` is "length" where a limit cut it, otherwise "stop".

    Where an end token could still have come when the limit was reached, that counts as a cut.
    """

    output: str
    finish_reason: str
    tokens: list[DecodedToken]
    attention: AttentionMap | None = None
    alignment: Alignment | None = None


@dataclass(frozen=True, slots=True)
class DecodeUsage:
    """What was read and written."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeAnswer:
    """The answer to a decode request."""

    model: str
    version: int
    results: list[DecodeResult]
    usage: DecodeUsage


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for an encoder-decoder."""
    ragged = Ragged(name="source", dtype=np.int32)
    grid = make_grid(
        card.limits["max_len"], batch_sizes=(8, 32), shortest=16, factor=4, max_tokens=4096
    )
    scalars = (("max_new_tokens", np.int32(0)),)
    trial = {"max_new_tokens": 1}

    def full(model: EncoderDecoder, *arrays: Any) -> dict[str, Any]:
        return model.decode(*arrays)._asdict()

    def lean(model: EncoderDecoder, *arrays: Any) -> dict[str, Any]:
        outputs = full(model, *arrays)
        del outputs["attention"]
        return outputs

    few = tuple(shape for shape in grid if shape[0] <= 8)
    return (
        Program(
            name="decode", function=lean, ragged=ragged, scalars=scalars, grid=grid, trial=trial
        ),
        Program(
            name="decode+attention",
            function=full,
            ragged=ragged,
            scalars=scalars,
            grid=few,
            trial=trial,
        ),
    )


async def decode(context: Context, request: DecodeRequest, ticket: Ticket) -> DecodeAnswer:
    """Every source decoded greedily.

    Raises:
        InvalidInput: if a source holds a symbol outside the alphabet or has the wrong length.
    """
    model = context.registry.choose(request.model, WIRING)
    config = model.card.config
    texts = context.texts(request.inputs)
    sources = await off_loop(lambda: [_encode(model, text, param) for param, text in texts])
    choice = choose(request.attention, config["num_decoder_layers"], config["num_heads"])
    if choice:
        num_pairs = sum(len(source) ** 2 for source in sources)
        choice.require_size(num_pairs, context.settings.max_attention_values)
    limits = [min(request.max_new_tokens or len(source), len(source)) for source in sources]
    rows = [
        {"source": source, "max_new_tokens": limit}
        for source, limit in zip(sources, limits, strict=True)
    ]
    program = "decode+attention" if choice else "decode"
    outputs = await context.run(model, program, rows, ticket)
    results = [
        _result(model, row, output, choice) for row, output in zip(rows, outputs, strict=True)
    ]
    return DecodeAnswer(
        model=model.card.name,
        version=model.card.version,
        results=results,
        usage=DecodeUsage(sum(map(len, sources)), sum(len(r.tokens) for r in results)),
    )


def _encode(model: LoadedModel, text: str, param: str) -> np.ndarray:
    tokens = encode_text(model, text, param)
    require_length(len(tokens), model.card.limits, param)
    return tokens


def _result(
    model: LoadedModel, row: Row, output: Result, choice: AttentionChoice | None
) -> DecodeResult:
    source = row["source"]
    symbols = model.card.vocabulary.tokens
    ids = output["tokens"][: int(output["lengths"])]
    tokens = [
        DecodedToken(symbols[i], float(p)) for i, p in zip(ids, output["log_probs"], strict=False)
    ]
    if model.card.config["eos_id"] is None:
        is_whole = len(ids) == len(source)
    else:
        is_whole = len(ids) < row["max_new_tokens"]
    attention = alignment = None
    if choice:
        names = [[symbols[i] for i in side] for side in (ids, source)]
        attention = choice.select(output["attention"], *names)
        truth = model.card.task.get("alignment")
        alignment = align(output["attention"][-1].mean(axis=0), len(ids), len(source), truth)
    return DecodeResult(
        output="".join(token.token for token in tokens),
        finish_reason="stop" if is_whole else "length",
        tokens=tokens,
        attention=attention,
        alignment=alignment,
    )


def align(weights: np.ndarray, num_targets: int, num_sources: int, truth: str | None) -> Alignment:
    """Where ``weights`` (T, S) look; ``truth`` "reverse" says that target i is source S - 1 - i."""
    weights = weights[:num_targets, :num_sources]
    found = weights.argmax(axis=1)
    rows = np.arange(num_targets)
    hit_rate = mean_weight = None
    if truth == "reverse" and num_targets:
        true = num_sources - 1 - rows
        hit_rate = float((found == true).mean())
        mean_weight = float(weights[rows, true].mean())
    return Alignment(
        source_positions=found.tolist(),
        weights=weights[rows, found].tolist(),
        hit_rate=hit_rate,
        mean_weight=mean_weight,
    )

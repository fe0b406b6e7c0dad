"""Decode: sources through an encoder-decoder, greedily or by beam, with cross-attention on request.

What a source becomes is decoded first; where the decoder looked is asked of the finished target in
a second call, which greedy, beam and streamed answers share.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models import beam_search, decoding, packed_encoder_decoder
from models.checkpoint import ModelCard
from models.decoding import Decoded
from models.encoder_decoder import EncoderDecoderConfig
from models.packed_encoder_decoder import PackedEncoderDecoder
from models.vocabulary import Vocabulary
from service.batches import Ticket
from service.errors import InvalidInput
from service.programs import Program, Ragged, Result, Row, longest_of, make_grid
from service.registry import LoadedModel
from service.schemas import MAX_BEAMS, DecodeRequest
from service.tasks.attention import AttentionChoice, AttentionMap, choose
from service.tasks.context import Context, encode_text, off_loop, require_length

WIRING = "encoder-decoder"
# How many tokens a streamed source gets at a time.
TOKENS_PER_PART = 4


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
class Beam:
    """A target that beam search found, with the natural logarithm of its whole probability."""

    output: str
    logprob: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeResult:
    """One decoded source; ``finish_reason`` is "length" where a limit cut it, otherwise "stop".

    ``beams`` are all targets that beam search found, the most probable first, which is the output.
    """

    output: str
    finish_reason: str
    tokens: list[DecodedToken]
    beams: list[Beam] | None = None
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


@dataclass(frozen=True, slots=True)
class Target:
    """What a source became: its tokens, their log-probabilities, and whether it ended by itself."""

    ids: np.ndarray
    log_probs: np.ndarray
    has_ended: bool


@dataclass(frozen=True, slots=True)
class Job:
    """A decode request, checked: the rows that its sources are, and what else it wants."""

    model: LoadedModel
    rows: list[Row]
    choice: AttentionChoice | None

    @property
    def config(self) -> EncoderDecoderConfig:
        """The model's."""
        return EncoderDecoderConfig(**self.model.card.config)

    @property
    def targets(self) -> Vocabulary:
        """The vocabulary of what is decoded."""
        return self.model.card.target_vocabulary or self.model.card.vocabulary


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for an encoder-decoder."""
    config = EncoderDecoderConfig(**card.config)
    ragged = Ragged(name="source", dtype=np.int32)
    grid = make_grid(card.limits["max_len"], batch_sizes=(4, 16), shortest=16, factor=4)
    one, few = longest_of(grid, 1), longest_of(grid, 4)
    limit = (("max_new_tokens", np.int32(0)),)
    trial = {"max_new_tokens": 1}

    def decode(model: PackedEncoderDecoder, *arrays: Any) -> dict[str, Any]:
        return decoding.decode(model, *arrays)._asdict()

    def search(model: PackedEncoderDecoder, *arrays: Any) -> dict[str, Any]:
        return beam_search.beam_search(model, *arrays, max_beams=MAX_BEAMS).finite()

    def attend(model: PackedEncoderDecoder, *arrays: Any) -> dict[str, Any]:
        return {"attention": decoding.cross_attention(model, *arrays)}

    def begin(model: PackedEncoderDecoder, *arrays: Any) -> dict[str, Any]:
        return decoding.pack(decoding.start(model, *arrays))

    def go_on(model: PackedEncoderDecoder, source: Any, _: Any, *arrays: Any) -> dict[str, Any]:
        named = dict(zip(state_arrays(source.shape[1]), arrays, strict=True))
        state = decoding.unpack(model, named)
        return decoding.pack(decoding.advance(model, state, TOKENS_PER_PART))

    def target_arrays(length: int) -> dict[str, np.ndarray]:
        return {
            "tokens": np.zeros(config.max_new_tokens(length), np.int32),
            "num_tokens": np.array(1, np.int32),
        }

    # Every batch asks for them, and finding the shapes traces the model.
    @functools.cache
    def state_arrays(length: int) -> dict[str, np.ndarray]:
        shapes = decoding.packed_shapes(config, length)
        return {
            name: np.zeros(shapes[name].shape[1:], shapes[name].dtype) for name in sorted(shapes)
        }

    program = functools.partial(Program, ragged=ragged, pack=packed_encoder_decoder.pack)
    seldom = functools.partial(program, is_on_demand=True)
    return (
        program(name="decode", function=decode, scalars=limit, grid=grid, trial=trial),
        seldom(
            name="search",
            function=search,
            grid=few,
            scalars=(*limit, ("num_beams", np.int32(1))),
            trial=trial,
        ),
        seldom(name="attend", function=attend, grid=one, arrays=target_arrays),
        seldom(name="begin", function=begin, grid=few, scalars=limit, trial=trial),
        seldom(name="go on", function=go_on, grid=few, arrays=state_arrays),
    )


async def decode(context: Context, request: DecodeRequest, ticket: Ticket) -> DecodeAnswer:
    """Every source decoded, greedily or by beam search.

    Raises:
        InvalidInput: if a source holds a symbol outside the alphabet or has the wrong length.
    """
    job = await prepare(context, request)
    if request.num_beams == 1:
        outputs = await context.run(job.model, "decode", job.rows, ticket)
        return await finish(context, job, [greedy(output) for output in outputs], ticket)
    outputs = await context.run(job.model, "search", job.rows, ticket)
    answer = await finish(context, job, [_ranked(output, 0) for output in outputs], ticket)
    beams = [_beams(job, output) for output in outputs]
    results = [replace(r, beams=b) for r, b in zip(answer.results, beams, strict=True)]
    return replace(answer, results=results)


async def prepare(context: Context, request: DecodeRequest) -> Job:
    """A request as rows for the model.

    Raises:
        InvalidInput: if a source, or what is asked of it, is not what the model takes.
        TooLarge: if the attention that is asked for is.
    """
    model = context.registry.choose(request.model, WIRING)
    config = EncoderDecoderConfig(**model.card.config)
    if request.stream and request.num_beams > 1:
        raise InvalidInput(
            f"expected 1 where stream is true, as a beam changes its mind, got {request.num_beams}",
            "num_beams",
        )
    texts = context.texts(request.inputs)
    sources = await off_loop(
        lambda: [_encode(model, text, param) for param, text in texts],
        size=sum(len(text) for _, text in texts),
    )
    most = [config.max_new_tokens(len(source)) for source in sources]
    limits = [min(request.max_new_tokens or size, size) for size in most]
    choice = choose(request.attention, config.num_decoder_layers, config.num_heads)
    if choice:
        num_pairs = sum(len(s) * limit for s, limit in zip(sources, limits, strict=True))
        choice.require_size(num_pairs, context.settings.max_attention_values)
    rows = [
        {
            "source": source,
            "max_new_tokens": limit,
            "num_beams": request.num_beams,
        }
        for source, limit in zip(sources, limits, strict=True)
    ]
    return Job(model, rows, choice)


def _encode(model: LoadedModel, text: str, param: str) -> np.ndarray:
    tokens = encode_text(model, text, param)
    require_length(len(tokens), model.card.limits, param)
    return tokens


def greedy(output: Result) -> Target:
    """What the programs that decode greedily give for a row, in a part or in full."""
    length = int(output["lengths"])
    return Target(
        output["tokens"][:length], output["log_probs"][:length], bool(output["has_ended"])
    )


def _ranked(output: Result, rank: int) -> Target:
    return greedy({name: output[name][rank] for name in Decoded._fields})


def _beams(job: Job, output: Result) -> list[Beam]:
    scores, exists = output["scores"], output["exists"]
    targets = [_ranked(output, rank) for rank in np.flatnonzero(exists).tolist()]
    return [
        Beam(output=job.targets.decode(target.ids), logprob=float(score))
        for target, score in zip(targets, scores[exists], strict=True)
    ]


async def finish(
    context: Context, job: Job, targets: Sequence[Target], ticket: Ticket
) -> DecodeAnswer:
    """The answer that tells of ``targets``, one for each row, with what was asked of them."""
    maps: Sequence[np.ndarray | None] = [None] * len(targets)
    if job.choice:
        maps = await _attend(context, job, targets, ticket)

    def tell() -> list[DecodeResult]:
        return [_result(job, *one) for one in zip(job.rows, targets, maps, strict=True)]

    # Maps are large; what comes without them is told faster than a thread is woken.
    results = await off_loop(tell) if job.choice else tell()
    return DecodeAnswer(
        model=job.model.card.name,
        version=job.model.card.version,
        results=results,
        usage=DecodeUsage(
            sum(len(row["source"]) for row in job.rows), sum(len(t.ids) for t in targets)
        ),
    )


async def _attend(
    context: Context, job: Job, targets: Sequence[Target], ticket: Ticket
) -> list[np.ndarray]:
    rows = [
        {"source": row["source"], "tokens": target.ids, "num_tokens": len(target.ids)}
        for row, target in zip(job.rows, targets, strict=True)
    ]
    outputs = await context.run(job.model, "attend", rows, ticket)
    return [output["attention"] for output in outputs]


def _result(job: Job, row: Row, target: Target, weights: np.ndarray | None) -> DecodeResult:
    source, symbols = row["source"], job.targets.tokens
    names = [symbols[index] for index in target.ids]
    is_whole = target.has_ended
    if job.config.eos_id is None:
        is_whole = len(names) == len(source)
    attention = alignment = None
    if job.choice and weights is not None:
        source_names = [job.model.card.vocabulary.tokens[index] for index in source]
        attention = job.choice.select(weights, names, source_names)
        truth = job.model.card.task.get("alignment")
        alignment = align(weights[-1].mean(axis=0), len(names), len(source), truth)
    return DecodeResult(
        output=job.targets.decode(target.ids),
        finish_reason="stop" if is_whole else "length",
        tokens=[
            DecodedToken(name, float(p)) for name, p in zip(names, target.log_probs, strict=True)
        ],
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

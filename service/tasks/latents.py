"""Latents: long inputs read into a fixed number of vectors."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models import packed_perceiver
from models.checkpoint import ModelCard
from models.packed_perceiver import PackedPerceiver, pack
from service.batches import Ticket
from service.encoding import Encoding, FloatArray, encode_array
from service.errors import InvalidInput
from service.npy import read_npy, write_npy
from service.programs import Program, Ragged, Result, Row, make_grid
from service.registry import LoadedModel
from service.schemas import EncodedArray, LatentsOptions, LatentsRequest
from service.tasks import latents_in_parts
from service.tasks.attention import AttentionChoice, AttentionMap, choose
from service.tasks.context import Context, encode_text, off_loop, require_length
from service.tasks.features import feature_matrices
from service.tasks.latents_in_parts import share

WIRING = "perceiver"
OF_TEXT = "latents"
OF_TEXT_AND_BACK = "latents+reconstruction"
OF_VECTORS = "latents-of-vectors"
READING = "latents+attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentsResult:
    """The summary of one input of ``length`` characters or vectors; ``shape`` is [M, D].

    Where the text was read back: ``normalized`` is what went in, ``reconstruction`` what the
    latents alone gave back, and ``fidelity`` the share of characters that are the same.
    ``attention`` is that of the latents, its targets, reading the text, its source.
    """

    latents: FloatArray
    shape: list[int]
    length: int
    normalized: str | None = None
    reconstruction: str | None = None
    fidelity: float | None = None
    attention: AttentionMap | None = None


@dataclass(frozen=True, slots=True)
class LatentsUsage:
    """What was read."""

    input_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentsAnswer:
    """The answer to a latents request."""

    model: str
    version: int
    results: list[LatentsResult]
    usage: LatentsUsage


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inputs:
    """The ``rows`` of a request for a program; ``is_one`` where it was no list of inputs."""

    program: str
    rows: list[Row]
    is_one: bool


@dataclass(frozen=True, slots=True)
class Summaries:
    """What a model made of the inputs of a request, before it is put into any form.

    ``maps`` are what the latents read, or None where that was not asked for.
    """

    model: LoadedModel
    inputs: _Inputs
    outputs: list[Result]
    maps: list[AttentionMap] | None = None

    @property
    def usage(self) -> LatentsUsage:
        """What was read, in whatever form the answer is."""
        return LatentsUsage(sum(len(next(iter(row.values()))) for row in self.inputs.rows))

    def to_answer(self, encoding: Encoding) -> LatentsAnswer:
        """The answer in JSON."""
        maps = self.maps or [None] * len(self.outputs)
        results = [
            dataclasses.replace(self._result(row, output, encoding), attention=attention)
            for row, output, attention in zip(self.inputs.rows, self.outputs, maps, strict=True)
        ]
        return LatentsAnswer(
            model=self.model.card.name,
            version=self.model.card.version,
            results=results,
            usage=self.usage,
        )

    def to_npy(self) -> bytes:
        """All latents as one array: M x D of one input, B x M x D of a list."""
        latents = np.stack([output["latents"] for output in self.outputs])
        return write_npy(latents[0] if self.inputs.is_one else latents)

    def _result(self, row: Row, output: Result, encoding: Encoding) -> LatentsResult:
        values = next(iter(row.values()))
        result = LatentsResult(
            latents=encode_array(output["latents"], encoding),
            shape=list(output["latents"].shape),
            length=len(values),
        )
        if "tokens" not in output:
            return result
        decode, back = self.model.card.vocabulary.decode, output["tokens"][: len(values)]
        return dataclasses.replace(
            result,
            normalized=decode(values),
            reconstruction=decode(back),
            fidelity=float((back == values).mean()),
        )


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for a Perceiver."""
    grid = make_grid(card.limits["max_len"], batch_sizes=(4,), shortest=128, factor=4)

    def encode(packed: PackedPerceiver, *arrays: Any) -> dict[str, Any]:
        return {"latents": packed_perceiver.encode(packed, *arrays)}

    def of_text_and_back(packed: PackedPerceiver, *arrays: Any) -> dict[str, Any]:
        return packed_perceiver.reconstruct(packed, *arrays)._asdict()

    def reading(packed: PackedPerceiver, *arrays: Any) -> dict[str, Any]:
        return {"attention": packed_perceiver.attention(packed, *arrays)}

    tokens = Ragged(name="tokens", dtype=np.int32)
    vectors = Ragged(name="vectors", dtype=np.float32, trailing=(card.config["embed_dim"],))
    alone = tuple(shape for shape in grid if shape[0] == 1)
    program = functools.partial(Program, pack=pack)
    seldom = functools.partial(program, grid=alone, is_on_demand=True)
    return (
        program(
            name=OF_TEXT,
            function=encode,
            ragged=tokens,
            grid=grid,
            share=share(OF_TEXT, tokens),
        ),
        seldom(
            name=OF_TEXT_AND_BACK,
            function=of_text_and_back,
            ragged=tokens,
            share=share(OF_TEXT_AND_BACK, tokens, reads_back=True),
        ),
        seldom(
            name=OF_VECTORS,
            function=encode,
            ragged=vectors,
            share=share(OF_VECTORS, vectors),
        ),
        seldom(name=READING, function=reading, ragged=tokens),
        *latents_in_parts.programs(card, (tokens, vectors)),
    )


async def latents(context: Context, request: LatentsRequest, ticket: Ticket) -> Summaries:
    """The summary of every input.

    Raises:
        InvalidInput: if there are neither or both of ``inputs`` and ``features``, or one is of
            the wrong shape or length, not finite or holds a symbol outside the alphabet.
    """
    model = context.registry.choose(request.model, WIRING)
    inputs = await off_loop(lambda: _inputs(context, model, request))
    choice = choose(request.attention, 1, model.card.config["num_heads"])
    if choice:
        _require_readable(context, model, request, inputs, choice)
    outputs = await context.run(model, inputs.program, inputs.rows, ticket)
    if not choice:
        return Summaries(model, inputs, outputs)
    readings = await context.run(model, READING, inputs.rows, ticket)
    maps = [
        _map(model, row, reading, choice)
        for row, reading in zip(inputs.rows, readings, strict=True)
    ]
    return Summaries(model, inputs, outputs, maps)


def _require_readable(
    context: Context,
    model: LoadedModel,
    request: LatentsRequest,
    inputs: _Inputs,
    choice: AttentionChoice,
) -> None:
    if request.features is not None:
        raise InvalidInput("expected none where features are sent, got some", "attention")
    num_characters = sum(len(row["tokens"]) for row in inputs.rows)
    num_pairs = model.card.config["num_latents"] * num_characters
    choice.require_size(num_pairs, context.settings.max_attention_values)


def _map(model: LoadedModel, row: Row, reading: Result, choice: AttentionChoice) -> AttentionMap:
    latents = [f"latent {index}" for index in range(model.card.config["num_latents"])]
    symbols = [model.card.vocabulary.tokens[token] for token in row["tokens"]]
    return choice.select(reading["attention"][None], latents, symbols)


async def latents_of_npy(
    context: Context, body: bytes, options: LatentsOptions, ticket: Ticket
) -> Summaries:
    """The summary of the array, or of every array of the stack, in an ``.npy`` file.

    Raises:
        InvalidInput: if it holds anything but finite float32 numbers of the right shape.
    """
    model = context.registry.choose(options.model, WIRING)
    inputs = await off_loop(lambda: _vectors(context, model, read_npy(body, "features")))
    return Summaries(model, inputs, await context.run(model, inputs.program, inputs.rows, ticket))


async def latents_of_vectors(
    context: Context, model: LoadedModel, features: tuple[np.ndarray, ...], ticket: Ticket
) -> Summaries:
    """The summary of every one of some matrices N x D, which may differ in N.

    Raises:
        InvalidInput: if one holds anything but finite numbers of the right shape.
    """
    inputs = await off_loop(lambda: _vectors(context, model, features))
    return Summaries(model, inputs, await context.run(model, inputs.program, inputs.rows, ticket))


def _inputs(context: Context, model: LoadedModel, request: LatentsRequest) -> _Inputs:
    """The rows of what the request holds, and the program that reads them."""
    if (request.inputs is None) == (request.features is None):
        both = "both" if request.inputs is not None else "neither"
        raise InvalidInput(f"expected either inputs or features, got {both}", "inputs")
    if request.inputs is not None:
        rows = [{"tokens": _tokens(model, *named)} for named in context.texts(request.inputs)]
        program = OF_TEXT_AND_BACK if request.reconstruct else OF_TEXT
        return _Inputs(program=program, rows=rows, is_one=isinstance(request.inputs, str))
    if request.reconstruct:
        raise InvalidInput(
            "expected false where features are sent, which are not read back, got true",
            "reconstruct",
        )
    return _vectors(context, model, request.features)


def _tokens(model: LoadedModel, param: str, text: str) -> np.ndarray:
    tokens = encode_text(model, text, param)
    require_length(len(tokens), model.card.limits, param)
    return tokens


def _vectors(
    context: Context,
    model: LoadedModel,
    features: EncodedArray | list[object] | np.ndarray | tuple[np.ndarray, ...] | None,
) -> _Inputs:
    matrices = feature_matrices(features, model.card.config["embed_dim"])
    context.require_count(len(matrices), "features")
    for param, matrix in matrices:
        require_length(len(matrix), model.card.limits, param)
    rows = [{"vectors": matrix} for _, matrix in matrices]
    is_one = [param for param, _ in matrices] == ["features"]
    return _Inputs(program=OF_VECTORS, rows=rows, is_one=is_one)

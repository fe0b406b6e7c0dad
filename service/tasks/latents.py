"""Latents: long inputs read into a fixed number of vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.checkpoint import ModelCard
from models.perceiver import PerceiverAutoencoder
from service.batcher import Ticket
from service.encoding import FloatArray, decode_array, encode_array
from service.engine import Program, Ragged, Row, make_grid
from service.errors import InvalidInput, excerpt
from service.registry import LoadedModel
from service.schemas import EncodedArray, LatentsRequest
from service.tasks.context import Context, encode_text, off_loop, require_length

WIRING = "perceiver"
# Features take the place of embeddings, which are of the order of 1. Attention multiplies them and
# norms square them, so that much larger ones overflow float32 inside the model.
MAX_MAGNITUDE = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentsResult:
    """The summary of one input of ``length`` characters or vectors; ``shape`` is [M, D]."""

    latents: FloatArray
    shape: list[int]
    length: int


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


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for a Perceiver."""
    grid = make_grid(
        card.limits["max_len"], batch_sizes=(8,), shortest=128, factor=4, max_tokens=4096
    )

    def of_text(model: PerceiverAutoencoder, *arrays: Any) -> dict[str, Any]:
        return {"latents": model.encode(*arrays).latents}

    def of_vectors(model: PerceiverAutoencoder, *arrays: Any) -> dict[str, Any]:
        return {"latents": model.encode_vectors(*arrays).latents}

    tokens = Ragged(name="tokens", dtype=np.int32)
    vectors = Ragged(name="vectors", dtype=np.float32, trailing=(card.config["embed_dim"],))
    return (
        Program(name="latents", function=of_text, ragged=tokens, grid=grid),
        Program(name="latents-of-vectors", function=of_vectors, ragged=vectors, grid=grid),
    )


async def latents(context: Context, request: LatentsRequest, ticket: Ticket) -> LatentsAnswer:
    """The summary of every input.

    Raises:
        InvalidInput: if there are neither or both of ``inputs`` and ``features``, or one is of
            the wrong shape or length, not finite or holds a symbol outside the alphabet.
    """
    model = context.registry.choose(request.model, WIRING)
    program, rows = await off_loop(lambda: _rows(context, model, request))
    ragged = model.engine.programs[program].ragged.name
    outputs = await context.run(model, program, rows, ticket)
    results = [
        LatentsResult(
            latents=encode_array(output["latents"], request.encoding_format),
            shape=list(output["latents"].shape),
            length=len(row[ragged]),
        )
        for row, output in zip(rows, outputs, strict=True)
    ]
    return LatentsAnswer(
        model=model.card.name,
        version=model.card.version,
        results=results,
        usage=LatentsUsage(sum(result.length for result in results)),
    )


def _rows(context: Context, model: LoadedModel, request: LatentsRequest) -> tuple[str, list[Row]]:
    """The program that reads what the request holds, and its rows."""
    if (request.inputs is None) == (request.features is None):
        both = "both" if request.inputs is not None else "neither"
        raise InvalidInput(f"expected either inputs or features, got {both}", "inputs")
    if request.inputs is not None:
        rows = []
        for param, text in context.texts(request.inputs):
            tokens = encode_text(model, text, param)
            require_length(len(tokens), model.card.limits, param)
            rows.append({"tokens": tokens})
        return "latents", rows
    width = model.card.config["embed_dim"]
    matrices = feature_matrices(request.features, width)
    context.require_count(len(matrices), "features")
    for param, matrix in matrices:
        require_length(len(matrix), model.card.limits, param)
    return "latents-of-vectors", [{"vectors": matrix} for _, matrix in matrices]


def feature_matrices(
    features: EncodedArray | Sequence[object] | None, width: int
) -> list[tuple[str, np.ndarray]]:
    """The N x ``width`` matrices of a request, as float32, each with the name of its field.

    Raises:
        InvalidInput: if the features are not finite numbers of that shape.
    """
    if isinstance(features, EncodedArray):
        array = decode_array(features.data, features.dtype, features.shape, "features")
        if array.ndim == 2:
            return [("features", _checked(array, width, "features"))]
        named = [(f"features[{index}]", matrix) for index, matrix in enumerate(array)]
        return [(name, _checked(matrix, width, name)) for name, matrix in named]
    if not features:
        raise InvalidInput(f"expected N x {width} numbers, got an empty list", "features")
    if _depth(features) < 3:
        return [("features", _matrix(features, width, "features"))]
    named = [(f"features[{index}]", matrix) for index, matrix in enumerate(features)]
    return [(name, _matrix(matrix, width, name)) for name, matrix in named]


def _depth(value: object) -> int:
    depth = 0
    while isinstance(value, list):
        depth += 1
        value = value[0] if value else None
    return depth


def _matrix(rows: object, width: int, param: str) -> np.ndarray:
    """Nested lists as a matrix; only numbers count as such, not strings, booleans or null."""
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise InvalidInput(
            f"expected N x {width} numbers as a list of lists, got {excerpt(rows)}", param
        )
    for index, row in enumerate(rows):
        if len(row) != width:
            raise InvalidInput(f"expected {width} numbers, got {len(row)}", f"{param}[{index}]")
        odd = next((i for i, value in enumerate(row) if type(value) not in (float, int)), None)
        if odd is not None:
            name = f"{param}[{index}][{odd}]"
            raise InvalidInput(f"expected a number, got {excerpt(row[odd])}", name)
    return _checked(np.array(rows, dtype=np.float64).reshape(len(rows), width), width, param)


def _checked(matrix: np.ndarray, width: int, param: str) -> np.ndarray:
    if matrix.ndim != 2 or matrix.shape[1] != width:
        raise InvalidInput(f"expected N x {width} numbers, got shape {list(matrix.shape)}", param)
    # Not greater is not enough, as it would let NaN through.
    fitting = np.abs(matrix) <= MAX_MAGNITUDE
    if not fitting.all():
        row, column = np.argwhere(~fitting)[0]
        raise InvalidInput(
            f"expected a number from {-MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}, "
            f"got {matrix[row, column]:g}",
            f"{param}[{row}][{column}]",
        )
    return matrix.astype(np.float32)

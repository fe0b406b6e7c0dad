"""Embeddings: one vector for every input, in the OpenAI schema.

An encoder's states are pooled over the positions of the input, a Perceiver's latents over the
latents; how is named by ``task.pooling`` of the bundle. Vectors are not scaled to unit length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.checkpoint import ModelCard
from models.encoder import MaskedLanguageModel
from service.batches import Ticket
from service.encoding import FloatArray, encode_array
from service.errors import InvalidInput, excerpt
from service.programs import Program, Ragged, Result, make_grid
from service.schemas import EmbeddingsRequest
from service.tasks import fill_mask
from service.tasks import latents as perceiver
from service.tasks.context import Context, off_loop
from service.tasks.texts_or_ids import encode_inputs, num_symbols

WIRINGS = (fill_mask.WIRING, perceiver.WIRING)
PROGRAM = "embed"
POOLINGS = ("mean",)
DEFAULT_POOLING = "mean"


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """The vector of one input."""

    object: str
    index: int
    embedding: FloatArray


@dataclass(frozen=True, slots=True)
class EmbeddingsUsage:
    """What was read."""

    prompt_tokens: int
    total_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingsAnswer:
    """The answer to an embeddings request."""

    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for embeddings; a Perceiver's come from its latents.

    Raises:
        ValueError: if the bundle names a pooling that does not exist.
    """
    pooling = card.task.get("pooling", DEFAULT_POOLING)
    if pooling not in POOLINGS:
        raise ValueError(f"task: pooling: expected one of {POOLINGS}, got {excerpt(pooling)}")
    if card.wiring == perceiver.WIRING:
        return ()

    def embed(model: MaskedLanguageModel, *arrays: Any) -> dict[str, Any]:
        return {"embedding": model.embed(*arrays)}

    grid = make_grid(card.limits["max_len"], batch_sizes=(4, 16), shortest=16, factor=4)
    ragged = Ragged(name="tokens", dtype=np.int32)
    return (Program(name=PROGRAM, function=embed, ragged=ragged, grid=grid),)


async def embeddings(
    context: Context, request: EmbeddingsRequest, ticket: Ticket
) -> EmbeddingsAnswer:
    """The vector of every input.

    Raises:
        InvalidInput: if an input is longer than the model reads, or holds what it does not know,
            or ``dimensions`` is not the model's width.
    """
    model = context.registry.choose(request.model, *WIRINGS)
    width = model.card.config["embed_dim"]
    if request.dimensions not in (None, width):
        raise InvalidInput(
            f"expected {width}, the width of {model.card.name}, got {request.dimensions}",
            "dimensions",
        )
    num_ids = len(model.card.vocabulary.tokens)
    inputs = await off_loop(
        lambda: encode_inputs(context, model, request.input, "input", num_ids),
        size=num_symbols(request.input),
    )
    program = PROGRAM if model.card.wiring == fill_mask.WIRING else perceiver.OF_TEXT
    outputs = await context.run(model, program, [{"tokens": tokens} for tokens in inputs], ticket)
    data = [
        Embedding(
            object="embedding",
            index=index,
            embedding=encode_array(pool(output), request.encoding_format),
        )
        for index, output in enumerate(outputs)
    ]
    num_tokens = sum(map(len, inputs))
    return EmbeddingsAnswer(
        object="list",
        data=data,
        model=model.card.name,
        usage=EmbeddingsUsage(num_tokens, num_tokens),
    )


def pool(output: Result) -> np.ndarray:
    """The vector of an input, from what the model gave for it: as it is, or the latents' mean."""
    if "embedding" in output:
        return output["embedding"]
    return output["latents"].mean(axis=0, dtype=np.float64)

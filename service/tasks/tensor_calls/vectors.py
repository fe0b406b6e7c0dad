"""Embeddings as tensors, of an encoder or of a Perceiver."""

import numpy as np

from service.errors import InvalidInput
from service.schemas import EmbeddingsRequest
from service.tasks.context import off_loop, require_length
from service.tasks.embeddings import embeddings
from service.tasks.tensor_calls.call import Results, TensorCall, Usage, make_request, told_as
from service.tasks.tensor_calls.signature import Form, TensorSpec

EMBEDDINGS = "embeddings"
OF_TOKENS = Form(inputs=("tokens",), optional=("lengths",), outputs=(EMBEDDINGS,))


def embeddings_spec(width: int, description: str) -> TensorSpec:
    """What the output is."""
    return TensorSpec(
        name=EMBEDDINGS, datatypes=("FP32",), shape=(-1, width), description=description
    )


async def embed(call: TensorCall) -> Results:
    """The vector of every text, or of every row of tokens.

    Raises:
        InvalidInput: if there are parameters, which none of this has.
    """
    if call.parameters:
        raise InvalidInput(
            f"expected none for {EMBEDDINGS}, got some", f"parameters.{next(iter(call.parameters))}"
        )
    name = "text" if "text" in call.inputs else "tokens"
    with told_as(input=name, lengths="lengths"):
        given = call.texts if name == "text" else await off_loop(lambda: _token_ids(call))
        request = make_request(EmbeddingsRequest, input=given, encoding_format="float")
        answer = await embeddings(call.context, request, call.ticket)
    vectors = np.stack([item.embedding for item in answer.data])
    return Results({EMBEDDINGS: vectors}, Usage(answer.usage.prompt_tokens))


def _token_ids(call: TensorCall) -> list[list[int]]:
    """The rows of tokens as lists, once none is too long to be looked at one by one."""
    rows = call.rows("tokens")
    call.context.require_count(len(rows), "input")
    for index, row in enumerate(rows):
        require_length(len(row), call.model.card.limits, f"input[{index}]")
    return [row.tolist() for row in rows]

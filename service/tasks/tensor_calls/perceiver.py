"""A Perceiver's tensors: long texts or vectors in, latents out, and what they are worth."""

from collections.abc import Sequence

import numpy as np

from models.checkpoint import ModelCard
from service.schemas import LatentsRequest
from service.tasks.context import off_loop
from service.tasks.embeddings import pool
from service.tasks.latents import LatentsResult, Summaries, latents, latents_of_vectors
from service.tasks.tensor_calls.call import (
    LENGTHS,
    TEXT,
    TOKENS,
    Results,
    TensorCall,
    Usage,
    make_request,
    pad_maps,
    texts_array,
    told_as,
)
from service.tasks.tensor_calls.signature import Form, Signature, spec
from service.tasks.tensor_calls.vectors import EMBEDDINGS, OF_TOKENS, embed, embeddings_spec

READ_BACK = ("normalized", "reconstruction", "fidelity")


def signature(card: ModelCard) -> Signature:
    """What a Perceiver takes and gives."""
    width, num_latents = card.config["embed_dim"], card.config["num_latents"]
    features = spec(
        "features", "FP32", (-1, -1, width), "vectors in place of text, [inputs, N, width]"
    )
    outputs = (
        spec("latents", "FP32", (-1, num_latents, width), "the summary of each input"),
        spec("input_lengths", "INT32", (-1,), "N, the characters or vectors that were read"),
        embeddings_spec(width, "the mean of the latents, one vector for each input"),
        spec("normalized", "BYTES", (-1,), "the text as the model read it"),
        spec("reconstruction", "BYTES", (-1,), "what the latents alone give back of the text"),
        spec("fidelity", "FP32", (-1,), "the share of its characters that are the same"),
        spec(
            "attention",
            "FP32",
            (-1, 1, card.config["num_heads"], num_latents, -1),
            "what each latent read, [texts, 1, heads, latents, N], else 0",
        ),
    )
    given = ("latents", "input_lengths")
    return Signature(
        inputs=(TEXT, features, TOKENS, LENGTHS),
        outputs=outputs,
        forms=(
            Form(inputs=("text",), outputs=given, others=(EMBEDDINGS, *READ_BACK, "attention")),
            Form(inputs=("features",), optional=("lengths",), outputs=given, others=(EMBEDDINGS,)),
            OF_TOKENS,
        ),
    )


async def run(call: TensorCall) -> Results:
    """What is wanted of a Perceiver."""
    if "tokens" in call.inputs:
        return await embed(call)
    if "features" in call.inputs:
        # Vectors have the name that they have in native calls, and there are no parameters.
        rows = tuple(call.rows("features"))
        summaries = await latents_of_vectors(call.context, call.model, rows, call.ticket)
        outputs = await off_loop(lambda: _outputs(call, summaries))
        return Results(outputs, Usage(summaries.usage.input_tokens))
    with told_as(inputs="text", attention="attention"):
        request = make_request(
            LatentsRequest,
            inputs=call.texts,
            reconstruct=call.wants(*READ_BACK),
            attention=call.wants("attention"),
        )
        summaries = await latents(call.context, request, call.ticket)
        outputs = await off_loop(lambda: _outputs(call, summaries))
    return Results(outputs, Usage(summaries.usage.input_tokens))


def _outputs(call: TensorCall, summaries: Summaries) -> dict[str, np.ndarray]:
    results = summaries.to_answer("float").results
    outputs = {
        "latents": np.stack([result.latents for result in results]),
        "input_lengths": np.array([result.length for result in results], dtype=np.int32),
        EMBEDDINGS: np.stack([pool(output) for output in summaries.outputs]),
    }
    if call.wants(*READ_BACK):
        outputs |= _read_back(results)
    if call.wants("attention"):
        maps = [result.attention.weights for result in results if result.attention]
        outputs["attention"] = pad_maps(maps, call.context.settings.max_attention_values)
    return outputs


def _read_back(results: Sequence[LatentsResult]) -> dict[str, np.ndarray]:
    return {
        "normalized": texts_array([result.normalized or "" for result in results]),
        "reconstruction": texts_array([result.reconstruction or "" for result in results]),
        "fidelity": np.array([result.fidelity for result in results], dtype=np.float32),
    }

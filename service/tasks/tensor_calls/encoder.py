"""An encoder's tensors: text with masks in, candidates and the filled text out; embeddings."""

from collections.abc import Sequence

import numpy as np

from models.checkpoint import ModelCard
from service.errors import InvalidInput
from service.schemas import FillMaskRequest
from service.tasks.context import off_loop
from service.tasks.fill_mask import FillMaskResult, fill_mask
from service.tasks.tensor_calls.call import (
    LENGTHS,
    TEXT,
    TOKENS,
    Results,
    TensorCall,
    Usage,
    make_request,
    pad,
    pad_maps,
    texts_array,
    told_as,
)
from service.tasks.tensor_calls.signature import Form, Signature, spec
from service.tasks.tensor_calls.vectors import EMBEDDINGS, OF_TOKENS, embed, embeddings_spec

MASK_AXES = "[texts, masks of the text with the most of them]"
CANDIDATE_AXES = "[texts, masks, candidates of each]"


FILLED = (
    spec("filled", "BYTES", (-1,), "the text with its masks filled, the surest first"),
    spec("normalized", "BYTES", (-1,), "the text as the model read it"),
    spec("num_masks", "INT32", (-1,), "how many masks the text has"),
    spec("positions", "INT32", (-1, -1), f"where masks are, in tokens, else -1; {MASK_AXES}"),
    spec("entropy", "FP32", (-1, -1), f"of each mask, in nats, else 0; {MASK_AXES}"),
    spec(
        "candidates",
        "BYTES",
        (-1, -1, -1),
        f"symbols, likeliest first, else empty; {CANDIDATE_AXES}",
    ),
    spec("candidate_ids", "INT32", (-1, -1, -1), f"their token ids, else -1; {CANDIDATE_AXES}"),
    spec("scores", "FP32", (-1, -1, -1), f"their probabilities, else 0; {CANDIDATE_AXES}"),
)


def signature(card: ModelCard) -> Signature:
    """What an encoder takes and gives."""
    num_layers, num_heads = card.config["num_layers"], card.config["num_heads"]
    attention = spec(
        "attention",
        "FP32",
        (-1, num_layers, num_heads, -1, -1),
        "self-attention, [texts, layers, heads, target, source] in tokens, else 0",
    )
    of_text = embeddings_spec(
        card.config["embed_dim"], "one vector for each text or row of tokens; by itself only"
    )
    return Signature(
        inputs=(TEXT, TOKENS, LENGTHS),
        outputs=(*FILLED, attention, of_text),
        forms=(
            Form(
                inputs=("text",),
                outputs=tuple(own.name for own in FILLED),
                others=("attention", EMBEDDINGS),
            ),
            OF_TOKENS,
        ),
        parameters={
            "top_k": "integer from 1; candidates of each mask, 5 by default",
            "mask_token": "string; what stands for a mask in text, <mask> by default",
        },
    )


async def run(call: TensorCall) -> Results:
    """What is wanted of an encoder.

    Raises:
        InvalidInput: if embeddings are wanted beside what is filled in: they would be those of a
            text in which a mask is but the letters of its name.
    """
    if not call.wants(EMBEDDINGS):
        return await _fill(call)
    if len(call.wanted) > 1:
        raise InvalidInput(
            f"expected {EMBEDDINGS} by itself, as it is of text without masks, "
            f"got {', '.join(sorted(call.wanted))}",
            "outputs",
        )
    return await embed(call)


async def _fill(call: TensorCall) -> Results:
    with told_as(inputs="text", attention="attention"):
        request = make_request(
            FillMaskRequest,
            inputs=call.texts,
            attention=call.wants("attention"),
            **call.parameters,
        )
        answer = await fill_mask(call.context, request, call.ticket)
        outputs = await off_loop(lambda: _outputs(call, answer.results))
    return Results(outputs, Usage(answer.usage.input_tokens))


def _outputs(call: TensorCall, results: Sequence[FillMaskResult]) -> dict[str, np.ndarray]:
    masks = [result.masks for result in results]
    candidates = [[mask.candidates for mask in own] for own in masks]
    outputs = {
        "filled": texts_array([result.filled for result in results]),
        "normalized": texts_array([result.normalized for result in results]),
        "num_masks": np.array([len(own) for own in masks], dtype=np.int32),
        "positions": pad([[mask.position for mask in own] for own in masks], -1, np.int32),
        "entropy": pad([[mask.entropy for mask in own] for own in masks], 0, np.float32),
    }
    for name, field, fill, dtype in (
        ("candidates", "token", "", object),
        ("candidate_ids", "token_id", -1, np.int32),
        ("scores", "score", 0, np.float32),
    ):
        rows = [[[getattr(c, field) for c in mask] for mask in own] for own in candidates]
        outputs[name] = pad(rows, fill, dtype, num_axes=2)
    if call.wants("attention"):
        maps = [result.attention.weights for result in results if result.attention]
        outputs["attention"] = pad_maps(maps, call.context.settings.max_attention_values)
    return outputs

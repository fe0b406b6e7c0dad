"""An encoder-decoder's tensors: sources in, what they become out, and where the decoder looked."""

from collections.abc import Sequence

import numpy as np

from models.checkpoint import ModelCard
from service.errors import InvalidInput
from service.schemas import MAX_BEAMS, DecodeRequest
from service.tasks.context import off_loop
from service.tasks.decode import DecodeResult, decode
from service.tasks.tensor_calls.call import (
    TEXT,
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

BEAMS = ("beams", "beam_logprobs", "num_beams")
OF_ATTENTION = ("attention", "alignment")


TARGETS = (
    spec("output", "BYTES", (-1,), "what the text became"),
    spec("finish_reason", "BYTES", (-1,), "stop, or length where a limit cut it"),
    spec("output_lengths", "INT32", (-1,), "tokens of the output"),
    spec("tokens", "BYTES", (-1, -1), "tokens of the output, else empty"),
    spec("logprobs", "FP32", (-1, -1), "natural logarithm of each token's probability, else 0"),
)
FOUND = (
    spec("beams", "BYTES", (-1, -1), "outputs that beam search found, likeliest first, else empty"),
    spec("beam_logprobs", "FP32", (-1, -1), "natural logarithm of their probabilities, else 0"),
    spec("num_beams", "INT32", (-1,), "how many it found"),
)


def signature(card: ModelCard) -> Signature:
    """What an encoder-decoder takes and gives."""
    num_layers, num_heads = card.config["num_decoder_layers"], card.config["num_heads"]
    attention = spec(
        "attention",
        "FP32",
        (-1, num_layers, num_heads, -1, -1),
        "cross-attention, [texts, layers, heads, target, source] in tokens, else 0",
    )
    alignment = spec(
        "alignment",
        "INT32",
        (-1, -1),
        "for every token of the output the position in the text that it looked at most, else -1",
    )
    return Signature(
        inputs=(TEXT,),
        outputs=(*TARGETS, *FOUND, attention, alignment),
        forms=(
            Form(
                inputs=("text",),
                outputs=tuple(own.name for own in TARGETS),
                others=(*BEAMS, *OF_ATTENTION),
            ),
        ),
        parameters={
            "max_new_tokens": "integer from 1; most tokens of an output",
            "num_beams": f"integer from 1 to {MAX_BEAMS}; outputs searched at a time, 1 by default",
        },
    )


async def run(call: TensorCall) -> Results:
    """What is wanted of an encoder-decoder."""
    with told_as(inputs="text", attention="attention"):
        request = make_request(
            DecodeRequest,
            inputs=call.texts,
            attention=call.wants(*OF_ATTENTION),
            **call.parameters,
        )
        if call.wants(*BEAMS) and request.num_beams == 1:
            raise InvalidInput("expected more than 1 where beams are asked for, got 1", "num_beams")
        answer = await decode(call.context, request, call.ticket)
        outputs = await off_loop(lambda: _outputs(call, answer.results))
    return Results(outputs, Usage(answer.usage.input_tokens, answer.usage.output_tokens))


def _outputs(call: TensorCall, results: Sequence[DecodeResult]) -> dict[str, np.ndarray]:
    tokens = [result.tokens for result in results]
    outputs = {
        "output": texts_array([result.output for result in results]),
        "finish_reason": texts_array([result.finish_reason for result in results]),
        "output_lengths": np.array([len(own) for own in tokens], dtype=np.int32),
        "tokens": pad([[token.token for token in own] for own in tokens], "", object),
        "logprobs": pad([[token.logprob for token in own] for own in tokens], 0, np.float32),
    }
    if call.wants(*BEAMS):
        outputs |= _beams(results)
    if call.wants("attention"):
        maps = [result.attention.weights for result in results if result.attention]
        outputs["attention"] = pad_maps(maps, call.context.settings.max_attention_values)
    if call.wants("alignment"):
        found = [r.alignment.source_positions for r in results if r.alignment]
        outputs["alignment"] = pad(found, -1, np.int32)
    return outputs


def _beams(results: Sequence[DecodeResult]) -> dict[str, np.ndarray]:
    beams = [result.beams or [] for result in results]
    return {
        "beams": pad([[beam.output for beam in own] for own in beams], "", object),
        "beam_logprobs": pad([[beam.logprob for beam in own] for own in beams], 0, np.float32),
        "num_beams": np.array([len(own) for own in beams], dtype=np.int32),
    }

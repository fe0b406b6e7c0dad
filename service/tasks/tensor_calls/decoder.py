"""A decoder's tensors: prompts in, what they go on with out."""

from collections.abc import Sequence

import numpy as np

from models.checkpoint import ModelCard
from service.schemas import CompletionRequest
from service.tasks.complete import Choice, complete
from service.tasks.tensor_calls.call import (
    TEXT,
    Results,
    TensorCall,
    Usage,
    make_request,
    pad,
    texts_array,
    told_as,
)
from service.tasks.tensor_calls.signature import Form, Signature, spec

OF_LOGPROBS = ("output_lengths", "tokens", "logprobs")
# All outputs hold the choices of the first text, then those of the second, and so on.
CHOICES = "[texts x n]"


OUTPUTS = (
    spec("output", "BYTES", (-1,), f"what the text goes on with; {CHOICES}"),
    spec("finish_reason", "BYTES", (-1,), f"stop, or length where a limit cut it; {CHOICES}"),
    spec("normalized", "BYTES", (-1,), f"the text as the model read it; {CHOICES}"),
    spec("output_lengths", "INT32", (-1,), f"tokens of the output; {CHOICES}"),
    spec("tokens", "BYTES", (-1, -1), "tokens of the output, else empty"),
    spec("logprobs", "FP32", (-1, -1), "natural logarithm of each token's probability, else 0"),
)


def signature(card: ModelCard) -> Signature:
    """What a decoder takes and gives."""
    return Signature(
        inputs=(TEXT,),
        outputs=OUTPUTS,
        forms=(Form(inputs=("text",), outputs=tuple(own.name for own in OUTPUTS)),),
        parameters={
            "max_tokens": "integer from 0; tokens to go on with, 16 by default",
            "temperature": "number from 0 to 2; 0 takes the likeliest token, 1 by default",
            "top_p": "number over 0, up to 1; the mass of tokens to draw from, 1 by default",
            "n": "integer from 1; outputs for each text, 1 by default",
            "stop": "string; ends an output, which does not hold it",
            "seed": "integer; the same one draws the same outputs",
        },
    )


async def run(call: TensorCall) -> Results:
    """What is wanted of a decoder."""
    with told_as(prompt="text"):
        request = make_request(
            CompletionRequest,
            prompt=call.texts,
            logprobs=0 if call.wants(*OF_LOGPROBS) else None,
            **call.parameters,
        )
        answer = await complete(call.context, request, call.ticket)
    usage = Usage(answer.usage.prompt_tokens, answer.usage.completion_tokens)
    return Results(_outputs(answer.choices), usage)


def _outputs(choices: Sequence[Choice]) -> dict[str, np.ndarray]:
    outputs = {
        "output": texts_array([choice.text for choice in choices]),
        "finish_reason": texts_array([choice.finish_reason for choice in choices]),
        "normalized": texts_array([choice.normalized for choice in choices]),
    }
    logprobs = [choice.logprobs for choice in choices if choice.logprobs]
    if logprobs:
        outputs |= {
            "output_lengths": np.array([len(own.tokens) for own in logprobs], dtype=np.int32),
            "tokens": pad([own.tokens for own in logprobs], "", object),
            "logprobs": pad([own.token_logprobs for own in logprobs], 0, np.float32),
        }
    return outputs

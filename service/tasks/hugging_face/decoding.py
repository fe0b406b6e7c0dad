"""Text generation, translation and summarization by an encoder-decoder: a text in, another out."""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from models.vocabulary import Vocabulary
from service.batches import Ticket
from service.errors import InvalidInput, excerpt
from service.hugging_face import (
    GenerateParameters,
    TextGenerationInput,
    TextGenerationParameters,
    TranslationInput,
)
from service.registry import LoadedModel
from service.schemas import DecodeRequest
from service.tasks.context import Context
from service.tasks.decode import DecodeAnswer, DecodeResult, decode
from service.tasks.decode_stream import decode_stream
from service.tasks.hugging_face.answer import Answer, naming
from service.tasks.hugging_face.offers import SUMMARIZATION, TRANSLATION, find
from service.tasks.hugging_face.prompts import read_prompt, stops_of
from service.tasks.hugging_face.stopping import Tail, find_stop, keep_until
from service.tasks.hugging_face.written import (
    FinishReason,
    Spelling,
    StreamDetails,
    StreamEvent,
    Token,
    Written,
    tell,
)

# Of a task that decodes: the names of its fields under ``parameters``, and under those again.
FIELDS = {name: f"parameters.{name}" for name in ("max_new_tokens", "num_beams")}
DEEPER = {name: f"parameters.generate_parameters.{name}" for name in FIELDS}
# What only a decoder can do, with the value that leaves it off.
FOR_DECODERS = {
    "do_sample": False,
    "temperature": 0,
    "top_p": 1,
    "best_of": 1,
    "top_n_tokens": 0,
    "return_full_text": False,
}


@dataclass(frozen=True, slots=True)
class Translation:
    """A text that has been translated; the answer is a list of one."""

    translation_text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A text that has been summed up; the answer is a list of one."""

    summary_text: str


async def translate(
    context: Context, name: str, request: TranslationInput, ticket: Ticket
) -> Answer:
    """What a text becomes.

    Raises:
        InvalidInput: if the model decodes nothing, or the text is not what it reads.
    """
    result, usage = await _decode_one(context, name, TRANSLATION, request, ticket)
    return Answer([Translation(result.output)], usage)


async def summarize(
    context: Context, name: str, request: TranslationInput, ticket: Ticket
) -> Answer:
    """What a text becomes, as its summary.

    Raises:
        InvalidInput: if the model decodes nothing, or the text is not what it reads.
    """
    result, usage = await _decode_one(context, name, SUMMARIZATION, request, ticket)
    return Answer([Summary(result.output)], usage)


async def _decode_one(
    context: Context, name: str, task: str, request: TranslationInput, ticket: Ticket
) -> tuple[DecodeResult, object]:
    model = find(context, name, task)
    how = request.parameters and request.parameters.generate_parameters
    how = how or GenerateParameters()
    native = DecodeRequest(
        model=model.card.name,
        inputs=request.inputs,
        max_new_tokens=how.max_new_tokens,
        num_beams=how.num_beams or 1,
    )
    with naming(DEEPER):
        answer = await decode(context, native, ticket)
    return answer.results[0], answer.usage


async def write(
    context: Context, model: LoadedModel, request: TextGenerationInput, ticket: Ticket
) -> Answer:
    """What a text becomes, with its tokens if details are asked for.

    Raises:
        InvalidInput: if the text is not what the model reads, or a decoder would be needed.
    """
    parameters = request.parameters or TextGenerationParameters()
    stops = stops_of(parameters)
    native, _ = _native(context, model, request, parameters)
    with naming(FIELDS):
        answer = await decode(context, native, ticket)
    written = _written(model, answer.results[0], stops)
    return Answer(tell(written, (), details=bool(parameters.details)), answer.usage)


async def write_stream(
    context: Context, model: LoadedModel, request: TextGenerationInput, ticket: Ticket
) -> AsyncGenerator[StreamEvent, None]:
    """Every token as it is decoded.

    Raises:
        InvalidInput: before the first event, as ``write`` does.
    """
    parameters = request.parameters or TextGenerationParameters()
    stops = stops_of(parameters)
    native, num_tokens = _native(context, model, request, parameters)
    tail, spelling = Tail(stops), Spelling(_targets(model))
    reason: FinishReason = "stop_sequence"
    with naming(FIELDS):
        async with contextlib.aclosing(decode_stream(context, native, ticket)) as events:
            async for event in events:
                if isinstance(event, DecodeAnswer):
                    reason = _reason(event.results[0])
                    break
                index = event.position + 1
                token = spelling.token(event.token, event.logprob, is_first=index == 1)
                told = StreamEvent(index=index, token=token, generated_text=None, details=None)
                for ready in tail.add(told):
                    yield ready
                if tail.has_stopped:
                    break
    details = StreamDetails(
        finish_reason=reason,
        generated_tokens=tail.num_tokens,
        input_length=num_tokens,
        seed=None,
    )
    end = Token(id=model.card.config["eos_id"] or 0, text="", logprob=None, special=True)
    for event in tail.finish(details, prefix="", end=end):
        yield event


def _native(
    context: Context,
    model: LoadedModel,
    request: TextGenerationInput,
    parameters: TextGenerationParameters,
) -> tuple[DecodeRequest, int]:
    """The request in the words of the native call, and how many tokens are read."""
    for field, neutral in FOR_DECODERS.items():
        if (value := getattr(parameters, field)) not in (None, neutral):
            shown = str(neutral).lower()
            raise InvalidInput(
                f"expected null or {shown} for an encoder-decoder, which {model.card.name} is, "
                f"got {excerpt(value)}",
                f"parameters.{field}",
            )
    prompt = read_prompt(context, model, request.inputs, parameters.truncate)
    native = DecodeRequest(
        model=model.card.name,
        inputs=prompt.text,
        max_new_tokens=parameters.max_new_tokens,
        num_beams=parameters.num_beams or 1,
        stream=bool(request.stream),
    )
    return native, prompt.num_tokens


def _targets(model: LoadedModel) -> Vocabulary:
    return model.card.target_vocabulary or model.card.vocabulary


def _reason(result: DecodeResult) -> FinishReason:
    return "eos_token" if result.finish_reason == "stop" else "length"


def _written(model: LoadedModel, result: DecodeResult, stops: list[str]) -> Written:
    spelling = Spelling(_targets(model))
    tokens = [
        spelling.token(token.token, token.logprob, is_first=index == 0)
        for index, token in enumerate(result.tokens)
    ]
    text, reason = result.output, _reason(result)
    stop_at = find_stop(text, stops)
    if stop_at is not None:
        text, tokens, reason = text[:stop_at], keep_until(tokens, stop_at), "stop_sequence"
    return Written(
        generated_text=text,
        finish_reason=reason,
        generated_tokens=len(tokens),
        seed=None,
        prefill=[],
        tokens=tokens,
    )

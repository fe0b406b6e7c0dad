"""Text generation by a decoder: a prompt, continued."""

import contextlib
import itertools
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from service.batches import Ticket
from service.errors import InvalidInput
from service.hugging_face import TextGenerationInput, TextGenerationParameters
from service.registry import LoadedModel
from service.schemas import CompletionRequest
from service.tasks.complete import Choice, complete
from service.tasks.complete_stream import complete_stream
from service.tasks.context import Context
from service.tasks.hugging_face.answer import Answer, naming
from service.tasks.hugging_face.prompts import Prompt, read_prompt, stops_of
from service.tasks.hugging_face.stopping import Tail, keep_until
from service.tasks.hugging_face.written import (
    FinishReason,
    Spelling,
    StreamDetails,
    StreamEvent,
    Token,
    Written,
    tell,
)
from service.tasks.logprobs import CompletionLogprobs

DEFAULT_MAX_NEW_TOKENS = 100
FIELDS = {
    "prompt": "inputs",
    "max_tokens": "parameters.max_new_tokens",
    "n": "parameters.best_of",
    **{name: f"parameters.{name}" for name in ("temperature", "top_p", "seed", "stop")},
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """How tokens are chosen: by a ``temperature`` of 0 the likeliest, which needs no ``seed``."""

    temperature: float
    top_p: float
    seed: int | None


async def write(
    context: Context, model: LoadedModel, request: TextGenerationInput, ticket: Ticket
) -> Answer:
    """The prompt continued, with the tokens if details are asked for.

    Raises:
        InvalidInput: if the prompt is longer than the window, or values contradict each other.
    """
    parameters = request.parameters or TextGenerationParameters()
    drawing = _drawing(parameters)
    native, _ = _native(context, model, request, drawing)
    with naming(FIELDS):
        answer = await complete(context, native, ticket)
    written = [_written(model, choice, parameters, drawing) for choice in answer.choices]
    chosen, *others = sorted(written, key=_mean_logprob, reverse=True)
    told = tell(chosen, others, details=bool(parameters.details))
    return Answer(told, answer.usage)


async def write_stream(
    context: Context, model: LoadedModel, request: TextGenerationInput, ticket: Ticket
) -> AsyncGenerator[StreamEvent, None]:
    """Every token of what ``write`` would give.

    Raises:
        InvalidInput: before the first event, as ``write`` does, or if several texts are asked for.
    """
    parameters = request.parameters or TextGenerationParameters()
    if parameters.best_of not in (None, 1):
        raise InvalidInput(
            f"expected null or 1 where stream is true, got {parameters.best_of}",
            "parameters.best_of",
        )
    drawing = _drawing(parameters)
    native, prompt = _native(context, model, request, drawing)
    # What may begin a stop is held back by the native stream already.
    tail, spelling = Tail(()), Spelling(model.card.vocabulary)
    reason, prefix = "", ""
    with naming(FIELDS):
        async with contextlib.aclosing(complete_stream(context, native, ticket)) as chunks:
            async for chunk in chunks:
                (choice,) = chunk.choices
                if choice.logprobs is None:
                    reason, prefix = str(choice.finish_reason), choice.normalized or ""
                    continue
                (token,) = _tokens(spelling, choice.logprobs, choice.text)
                top = _top_tokens(spelling, choice.logprobs, parameters.top_n_tokens)
                event = StreamEvent(
                    index=tail.num_tokens + 1,
                    token=token,
                    generated_text=None,
                    details=None,
                    top_tokens=top[0] if top else None,
                )
                for ready in tail.add(event):
                    yield ready
    details = StreamDetails(
        finish_reason=_reason(reason),
        generated_tokens=tail.num_tokens,
        input_length=prompt.num_tokens,
        seed=drawing.seed,
    )
    end = Token(id=0, text="", logprob=None, special=True)
    prefix = prefix if parameters.return_full_text else ""
    for event in tail.finish(details, prefix=prefix, end=end):
        yield event


def _drawing(parameters: TextGenerationParameters) -> Drawing:
    """How tokens are to be chosen.

    Raises:
        InvalidInput: if that is contradictory.
    """
    temperature, top_p = parameters.temperature, parameters.top_p
    # A mass of 1 keeps all tokens, and so says nothing.
    is_narrowed = top_p not in (None, 1)
    if parameters.do_sample is False and (temperature or is_narrowed):
        raise InvalidInput(
            "expected null or true where temperature or top_p is given, got false",
            "parameters.do_sample",
        )
    if parameters.do_sample and temperature == 0:
        raise InvalidInput(
            "expected more than 0 where do_sample is true, got 0", "parameters.temperature"
        )
    is_drawn = parameters.do_sample or temperature or (temperature is None and is_narrowed)
    if not is_drawn:
        return Drawing(0.0, 1.0, None)
    seed = secrets.randbits(63) if parameters.seed is None else parameters.seed
    return Drawing(temperature or 1.0, top_p or 1.0, seed)


def _native(
    context: Context, model: LoadedModel, request: TextGenerationInput, drawing: Drawing
) -> tuple[CompletionRequest, Prompt]:
    """The request in the words of the native call, and what of it is read."""
    parameters = request.parameters or TextGenerationParameters()
    _require_for_decoders(model, parameters, drawing)
    best_of, is_stream = parameters.best_of or 1, bool(request.stream)
    if parameters.top_n_tokens and not (parameters.details or is_stream):
        raise InvalidInput(
            f"expected null or 0 unless details is true, got {parameters.top_n_tokens}",
            "parameters.top_n_tokens",
        )
    prompt = read_prompt(context, model, request.inputs, parameters.truncate)
    by_default = min(DEFAULT_MAX_NEW_TOKENS, context.settings.max_new_tokens)
    has_tokens = is_stream or parameters.details or best_of > 1
    native = CompletionRequest(
        model=model.card.name,
        prompt=prompt.text,
        max_tokens=parameters.max_new_tokens or by_default,
        temperature=drawing.temperature,
        top_p=drawing.top_p,
        seed=drawing.seed,
        n=best_of,
        stop=stops_of(parameters) or None,
        logprobs=parameters.top_n_tokens or 0 if has_tokens else None,
        stream=is_stream,
    )
    return native, prompt


def _require_for_decoders(
    model: LoadedModel, parameters: TextGenerationParameters, drawing: Drawing
) -> None:
    if parameters.num_beams not in (None, 1):
        raise InvalidInput(
            f"expected null or 1 for a decoder, which {model.card.name} is, "
            f"got {parameters.num_beams}",
            "parameters.num_beams",
        )
    if parameters.best_of not in (None, 1) and drawing.seed is None:
        raise InvalidInput(
            "expected null or 1 unless do_sample, temperature or top_p is given, "
            f"got {parameters.best_of}",
            "parameters.best_of",
        )


def _written(
    model: LoadedModel, choice: Choice, parameters: TextGenerationParameters, drawing: Drawing
) -> Written:
    """A choice in the shape of the protocol."""
    tokens: list[Token] = []
    top_tokens = None
    if told := choice.logprobs:
        spelling = Spelling(model.card.vocabulary)
        tokens = _tokens(spelling, told, choice.text)
        top_tokens = _top_tokens(spelling, told, parameters.top_n_tokens)
    prefix = choice.normalized if parameters.return_full_text else ""
    return Written(
        generated_text=prefix + choice.text,
        finish_reason=_reason(choice.finish_reason),
        generated_tokens=len(tokens),
        seed=drawing.seed,
        prefill=[],
        tokens=tokens,
        top_tokens=top_tokens,
    )


def _tokens(spelling: Spelling, told: CompletionLogprobs, text: str) -> list[Token]:
    """The tokens of ``text``, the last of which a stop may have cut."""
    named = zip(told.tokens, told.token_logprobs, strict=True)
    return keep_until([spelling.token(*one, is_first=True) for one in named], len(text))


def _top_tokens(
    spelling: Spelling, told: CompletionLogprobs, count: int | None
) -> list[list[Token]] | None:
    """The likeliest ``count`` tokens at every step, if any are asked for."""
    if not count:
        return None
    return [
        [spelling.token(*one, is_first=True) for one in itertools.islice(top.items(), count)]
        for top in told.top_logprobs
    ]


def _reason(finish_reason: str) -> FinishReason:
    return "length" if finish_reason == "length" else "stop_sequence"


def _mean_logprob(written: Written) -> float:
    """How likely the tokens of a text are; that of an empty text is that of certainty."""
    logprobs = [token.logprob for token in written.tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else 0.0

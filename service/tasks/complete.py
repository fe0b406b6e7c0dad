"""Completions: text continued by a decoder, in the OpenAI schema.

A completion may outgrow the window of the model; a prompt that is longer is refused, because
silently dropping its start would answer another question.
"""

import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.batches import Ticket
from service.errors import InvalidInput, excerpt
from service.registry import LoadedModel
from service.schemas import CompletionRequest
from service.tasks.context import Context, off_loop
from service.tasks.continuation import WIRING, Continuation, GenerationOptions, grow, score
from service.tasks.logprobs import CompletionLogprobs, tell_logprobs
from service.tasks.stops import Stop
from service.tasks.texts_or_ids import encode_inputs, num_symbols

MAX_STOPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One completion; ``normalized`` is the prompt as the model read it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: str
    normalized: str


@dataclass(frozen=True, slots=True)
class CompletionUsage:
    """What was read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionAnswer:
    """The answer to a completion request."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt with its text as it was read, and its log-probabilities if they are asked for."""

    tokens: np.ndarray
    text: str
    log_probs: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Job:
    """A completion request, checked: its prompts, and as many continuations of each."""

    model: LoadedModel
    prompts: list[Prompt]
    groups: list[list[Continuation]]

    @property
    def continuations(self) -> list[Continuation]:
        """Those of all prompts, in order."""
        return [continuation for group in self.groups for continuation in group]

    def usage(self) -> CompletionUsage:
        """What has been read, and written so far."""
        read = sum(len(prompt.tokens) for prompt in self.prompts)
        written = sum(continuation.num_kept for continuation in self.continuations)
        return CompletionUsage(read, written, read + written)


async def complete(
    context: Context, request: CompletionRequest, ticket: Ticket
) -> CompletionAnswer:
    """Every prompt continued ``n`` times.

    Raises:
        InvalidInput: if a prompt is longer than the window or holds a symbol outside the alphabet,
            or a value cannot be met.
    """
    job = await prepare(context, request, ticket)
    await grow(context, job.continuations, ticket)
    chosen = [
        (prompt, continuation)
        for prompt, group in zip(job.prompts, job.groups, strict=True)
        for continuation in _best(group, request.n)
    ]
    choices = [_choice(index, *one, request) for index, one in enumerate(chosen)]
    return CompletionAnswer(**heading(job.model), choices=choices, usage=job.usage())


def heading(model: LoadedModel) -> dict[str, Any]:
    """What every completion, and every chunk of one, begins with."""
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.card.name,
    }


async def prepare(context: Context, request: CompletionRequest, ticket: Ticket) -> Job:
    """A request as continuations of its prompts.

    Raises:
        InvalidInput: if a prompt, or what is asked for it, is not what the model takes.
    """
    model = context.registry.choose(request.model, WIRING)
    vocabulary = model.card.vocabulary
    num_draws = _num_draws(request)
    stops = _checked_stops(context, request)
    _require_servable(context, request)
    encoded = await off_loop(
        lambda: encode_inputs(context, model, request.prompt, "prompt", len(vocabulary.symbols)),
        size=num_symbols(request.prompt),
    )
    if len(encoded) * num_draws > context.settings.max_inputs:
        raise InvalidInput(
            f"expected at most {context.settings.max_inputs} choices over all prompts, "
            f"got {len(encoded) * num_draws}",
            "best_of" if num_draws > request.n else "n",
        )
    options = GenerationOptions(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stops=await off_loop(lambda: [Stop(text) for text in stops], size=num_symbols(stops)),
    )
    log_probs: Sequence[np.ndarray | None] = [None] * len(encoded)
    if request.echo and request.logprobs is not None:
        log_probs = await score(context, model, encoded, ticket)
    prompts = [
        Prompt(tokens=tokens, text=vocabulary.decode(tokens), log_probs=rows)
        for tokens, rows in zip(encoded, log_probs, strict=True)
    ]
    # The seeds of draws are put together from numbers that are not negative.
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**64
    return Job(
        model,
        prompts,
        [
            [Continuation(model, tokens, options, seed=seed, draw=i) for i in range(num_draws)]
            for tokens in encoded
        ],
    )


def _num_draws(request: CompletionRequest) -> int:
    """How often every prompt is continued."""
    best_of = request.best_of or request.n
    if best_of < request.n:
        raise InvalidInput(f"expected at least n, which is {request.n}, got {best_of}", "best_of")
    if request.stream and best_of > request.n:
        raise InvalidInput(
            f"expected n, which is {request.n}, or null where stream is true, as nothing is best "
            f"before all have ended, got {best_of}",
            "best_of",
        )
    return best_of


def _checked_stops(context: Context, request: CompletionRequest) -> list[str]:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOPS or "" in stops:
        raise InvalidInput(
            f"expected at most {MAX_STOPS} strings, none of them empty, got {excerpt(stops)}",
            "stop",
        )
    return [text for _, text in context.texts(stops, "stop")] if stops else []


def _require_servable(context: Context, request: CompletionRequest) -> None:
    limit = context.settings.max_new_tokens
    if request.stream_options and not request.stream:
        raise InvalidInput("expected null where stream is not true, got {...}", "stream_options")
    if request.max_tokens > limit:
        raise InvalidInput(f"expected at most {limit}, got {request.max_tokens}", "max_tokens")


def _best(group: Sequence[Continuation], count: int) -> Sequence[Continuation]:
    """As many continuations of a prompt as are asked for, the likeliest a token where not all."""
    if len(group) == count:
        return group
    return sorted(group, key=lambda one: one.mean_log_prob(), reverse=True)[:count]


def _choice(
    index: int, prompt: Prompt, continuation: Continuation, request: CompletionRequest
) -> Choice:
    text = continuation.text
    return Choice(
        text=prompt.text + text if request.echo else text,
        index=index,
        logprobs=_logprobs(prompt, continuation, request.logprobs),
        finish_reason=str(continuation.finish_reason),
        normalized=prompt.text,
    )


def _logprobs(
    prompt: Prompt, continuation: Continuation, num_top: int | None
) -> CompletionLogprobs | None:
    """Those of the text of a choice, which begins with the prompt if that has any."""
    if num_top is None:
        return None
    count = continuation.num_kept
    tokens: list[int] = continuation.tokens[:count]
    rows = continuation.log_probs[:count]
    if prompt.log_probs is not None:
        tokens = [*prompt.tokens.tolist(), *tokens]
        rows = [*prompt.log_probs, *rows]
    symbols = continuation.model.card.vocabulary.symbols
    return tell_logprobs(symbols, tokens, rows, num_top=num_top)

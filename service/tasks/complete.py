"""Completions: text continued by a decoder, in the OpenAI schema.

A model reads a window of characters. A completion that outgrows it goes on from the last half
window, so its length is not bound by the model; a prompt that is longer than the window is refused,
because silently dropping its start would answer another question.
"""

import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.checkpoint import ModelCard
from models.decoder import CausalLanguageModel, Sampling
from service.batcher import Ticket
from service.engine import Program, Ragged, make_grid
from service.errors import InvalidInput, excerpt
from service.registry import LoadedModel
from service.schemas import CompletionRequest
from service.tasks.context import Context, encode_text, off_loop, require_length

WIRING = "decoder"
MAX_STOPS = 4
# Temperatures and masses below it take the likeliest token, as their limit does; divided by or
# compared with in float32, they would overflow or vanish.
SMALLEST = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionLogprobs:
    """Log-probabilities (natural logarithms) of the tokens of a choice."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


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


@dataclass(slots=True)
class _Continuation:
    """One choice while it grows; ``stop_at`` is where a stop string began."""

    prompt: np.ndarray
    seed: tuple[int, int]
    tokens: np.ndarray
    log_probs: np.ndarray
    stop_at: int | None = None

    def offsets(self, model: LoadedModel) -> np.ndarray:
        """Where each token begins in the text."""
        names = model.card.vocabulary.tokens
        lengths = [len(names[i]) for i in self.tokens]
        return np.cumsum(lengths, dtype=np.int64) - lengths

    def num_kept(self, model: LoadedModel) -> int:
        """How many tokens begin before the stop."""
        if self.stop_at is None:
            return len(self.tokens)
        return int((self.offsets(model) < self.stop_at).sum())


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for a decoder."""
    grid = make_grid(
        card.config["max_seq_len"], batch_sizes=(8, 32), shortest=16, factor=4, max_tokens=4096
    )

    def generate(
        model: CausalLanguageModel, tokens: Any, lengths: Any, limit: Any, *how: Any
    ) -> dict[str, Any]:
        return model.generate(tokens, lengths, limit, Sampling(*how))._asdict()

    return (
        Program(
            name="generate",
            function=generate,
            ragged=Ragged(name="tokens", dtype=np.int32),
            scalars=(
                ("max_new_tokens", np.int32(0)),
                ("temperature", np.float32(0)),
                ("top_p", np.float32(1)),
                ("seed", np.uint32(0)),
            ),
            grid=grid,
            trial={"max_new_tokens": 1},
        ),
    )


async def complete(
    context: Context, request: CompletionRequest, ticket: Ticket
) -> CompletionAnswer:
    """Every prompt continued ``n`` times.

    Raises:
        InvalidInput: if a prompt is longer than the window or holds a symbol outside the alphabet,
            or a value cannot be met.
    """
    model = context.registry.choose(request.model, WIRING)
    stops = _stops(request)
    _require_servable(context, request)
    texts = context.texts("" if request.prompt is None else request.prompt, "prompt")
    prompts = await off_loop(lambda: [_encode(model, text, param) for param, text in texts])
    seed = secrets.randbits(63) if request.seed is None else request.seed
    empty = np.zeros(0, np.int32), np.zeros((0, len(model.card.vocabulary.symbols)), np.float32)
    continuations = [
        _Continuation(prompt, (seed, index), *empty)
        for prompt in prompts
        for index in range(request.n)
    ]
    await _grow(context, model, continuations, request, stops, ticket)
    choices = [
        _choice(model, index, continuation, request)
        for index, continuation in enumerate(continuations)
    ]
    read, written = sum(map(len, prompts)), sum(c.num_kept(model) for c in continuations)
    return CompletionAnswer(
        id=f"cmpl-{uuid.uuid4().hex}",
        object="text_completion",
        created=int(time.time()),
        model=model.card.name,
        choices=choices,
        usage=CompletionUsage(read, written, read + written),
    )


def _stops(request: CompletionRequest) -> list[str]:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOPS or "" in stops:
        raise InvalidInput(
            f"expected at most {MAX_STOPS} strings, none of them empty, got {excerpt(stops)}",
            "stop",
        )
    return stops


def _require_servable(context: Context, request: CompletionRequest) -> None:
    limit = context.settings.max_new_tokens
    if request.max_tokens > limit:
        raise InvalidInput(f"expected at most {limit}, got {request.max_tokens}", "max_tokens")
    if request.echo and request.logprobs is not None:
        raise InvalidInput("expected null where echo is true", "logprobs")
    num_prompts = 1 if isinstance(request.prompt, str | None) else len(request.prompt)
    if num_prompts * request.n > context.settings.max_inputs:
        raise InvalidInput(
            f"expected at most {context.settings.max_inputs} choices over all prompts, "
            f"got {num_prompts * request.n}",
            "n",
        )


def _encode(model: LoadedModel, text: str, param: str) -> np.ndarray:
    tokens = encode_text(model, text, param)
    require_length(len(tokens), model.card.limits, param)
    return tokens


async def _grow(
    context: Context,
    model: LoadedModel,
    continuations: list[_Continuation],
    request: CompletionRequest,
    stops: list[str],
    ticket: Ticket,
) -> None:
    """Continues every choice until it is long enough or stops, one window at a time."""
    vocabulary = model.card.vocabulary
    size = model.card.config["max_seq_len"]
    while growing := [
        c for c in continuations if c.stop_at is None and len(c.tokens) < request.max_tokens
    ]:
        rows = []
        for continuation in growing:
            text = np.concatenate([continuation.prompt, continuation.tokens])
            if len(text) >= size:
                text = text[-(size // 2) :]
            key = (*continuation.seed, len(continuation.tokens))
            rows.append(
                {
                    "tokens": np.concatenate([[model.card.config["vocab_size"]], text]),
                    "max_new_tokens": min(request.max_tokens - len(continuation.tokens), size),
                    "temperature": request.temperature if request.temperature > SMALLEST else 0,
                    "top_p": max(request.top_p, SMALLEST),
                    "seed": np.random.SeedSequence(key).generate_state(1)[0],
                }
            )
        outputs = await context.run(model, "generate", rows, ticket)
        for continuation, row, output in zip(growing, rows, outputs, strict=True):
            count = min(row["max_new_tokens"], size + 1 - len(row["tokens"]))
            for name in ("tokens", "log_probs"):
                grown = np.concatenate([getattr(continuation, name), output[name][:count]])
                setattr(continuation, name, grown)
            text = vocabulary.decode(continuation.tokens)
            found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
            continuation.stop_at = min(found, default=None)


def _choice(
    model: LoadedModel, index: int, continuation: _Continuation, request: CompletionRequest
) -> Choice:
    vocabulary = model.card.vocabulary
    prompt = vocabulary.decode(continuation.prompt)
    text = vocabulary.decode(continuation.tokens)[: continuation.stop_at]
    return Choice(
        text=prompt + text if request.echo else text,
        index=index,
        logprobs=_logprobs(model, continuation, request.logprobs),
        finish_reason="length" if continuation.stop_at is None else "stop",
        normalized=prompt,
    )


def _logprobs(
    model: LoadedModel, continuation: _Continuation, num_top: int | None
) -> CompletionLogprobs | None:
    if num_top is None:
        return None
    symbols = model.card.vocabulary.symbols
    count = continuation.num_kept(model)
    tokens, rows = continuation.tokens[:count], continuation.log_probs[:count]
    best = np.argsort(-rows, axis=1, kind="stable")[:, :num_top]
    return CompletionLogprobs(
        tokens=[symbols[i] for i in tokens],
        token_logprobs=[float(row[i]) for row, i in zip(rows, tokens, strict=True)],
        top_logprobs=[
            {symbols[i]: float(row[i]) for i in top} for row, top in zip(rows, best, strict=True)
        ],
        text_offset=continuation.offsets(model)[:count].tolist(),
    )

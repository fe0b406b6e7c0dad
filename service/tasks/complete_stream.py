"""Completions as a stream: a chunk for every token, those of all choices in turn.

A token is told once it is certain that it is no part of a stop, so no reader ever sees one begin.
"""

import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from service.batches import Ticket
from service.schemas import CompletionRequest
from service.tasks.complete import CompletionUsage, Prompt, heading, prepare
from service.tasks.context import Context
from service.tasks.continuation import Continuation, grow_in_parts
from service.tasks.logprobs import CompletionLogprobs, tell_logprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkChoice:
    """More of the choice ``index``.

    The last of it has no text, a ``finish_reason``, and the prompt as the model read it.
    """

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    normalized: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A part of a streamed completion."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[ChunkChoice]


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountedChunk(Chunk):
    """A chunk where usage is asked for: the last one has it, the others null."""

    usage: CompletionUsage | None


async def complete_stream(
    context: Context, request: CompletionRequest, ticket: Ticket
) -> AsyncGenerator[Chunk, None]:
    """Every token of what ``complete`` would give, and the end of every choice.

    Raises:
        InvalidInput: before the first chunk, if the request is not what the model takes.
    """
    job = await prepare(context, request, ticket)
    common = heading(job.model)
    is_accounted = bool(request.stream_options and request.stream_options.include_usage)
    owners = [prompt for prompt in job.prompts for _ in range(request.n)]
    readers = [
        _Reader(index, prompt, continuation, request)
        for index, (prompt, continuation) in enumerate(zip(owners, job.continuations, strict=True))
    ]

    def news() -> Iterator[Chunk]:
        ticket.usage = job.usage()
        for choice in itertools.chain.from_iterable(reader.news() for reader in readers):
            if is_accounted:
                yield AccountedChunk(**common, choices=[choice], usage=None)
            else:
                yield Chunk(**common, choices=[choice])

    async with contextlib.aclosing(grow_in_parts(context, job.continuations, ticket)) as parts:
        async for _ in parts:
            for chunk in news():
                yield chunk
    # All that there is where nothing was to be written.
    for chunk in news():
        yield chunk
    if is_accounted:
        yield AccountedChunk(**common, choices=[], usage=job.usage())


@dataclass(slots=True)
class _Reader:
    """What the client knows of one choice."""

    index: int
    prompt: Prompt
    continuation: Continuation
    request: CompletionRequest
    num_told: int = 0
    knows_prompt: bool = False
    knows_end: bool = False

    def news(self) -> Iterator[ChunkChoice]:
        """The prompt if it is asked for, every token that has become certain, and the end."""
        if not self.knows_prompt:
            self.knows_prompt = True
            if self.request.echo and self.prompt.text:
                yield self._prompt()
        while self.num_told < self.continuation.num_settled:
            yield self._token(self.num_told)
            self.num_told += 1
        if not (self.knows_end or self.continuation.is_running):
            self.knows_end = True
            yield ChunkChoice(
                text="",
                index=self.index,
                logprobs=None,
                finish_reason=self.continuation.finish_reason,
                normalized=self.prompt.text,
            )

    def _prompt(self) -> ChunkChoice:
        tokens, rows = self.prompt.tokens.tolist(), self.prompt.log_probs
        logprobs = None if rows is None else self._logprobs(tokens, list(rows), 0)
        return ChunkChoice(
            text=self.prompt.text, index=self.index, logprobs=logprobs, finish_reason=None
        )

    def _token(self, position: int) -> ChunkChoice:
        continuation = self.continuation
        offset = continuation.begin_of(position)
        if self.request.echo:
            offset += len(self.prompt.text)
        tokens, rows = [continuation.tokens[position]], [continuation.log_probs[position]]
        return ChunkChoice(
            text=continuation.text_of(position),
            index=self.index,
            logprobs=self._logprobs(tokens, rows, offset),
            finish_reason=None,
        )

    def _logprobs(
        self, tokens: Sequence[int], rows: Sequence[np.ndarray], offset: int
    ) -> CompletionLogprobs | None:
        if self.request.logprobs is None:
            return None
        symbols = self.continuation.model.card.vocabulary.symbols
        return tell_logprobs(symbols, tokens, rows, num_top=self.request.logprobs, offset=offset)

"""Texts that models write, in the shapes that clients of text generation read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from models.vocabulary import Vocabulary
from service.tasks.complete import CompletionUsage

FinishReason = Literal["length", "eos_token", "stop_sequence"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A token with what it adds to the text, and the natural logarithm of its probability."""

    id: int
    text: str
    logprob: float | None
    special: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A text that a model wrote, token by token; ``top_tokens`` are the likeliest at every step.

    ``prefill`` is empty: what is read has no probabilities. ``seed`` draws the text again, and is
    null where nothing was drawn.
    """

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[Token]
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """How a text came about; ``best_of_sequences`` are those that were drawn and not chosen."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[Token]
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None
    best_of_sequences: list[Written] | None = None


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """What was written; the answer is a list of one."""

    generated_text: str
    details: Details | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamDetails:
    """How a streamed text came about."""

    finish_reason: FinishReason
    generated_tokens: int
    input_length: int
    seed: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """A token of a stream, counted from 1; the last one has the whole text and its details."""

    index: int
    token: Token
    generated_text: str | None
    details: StreamDetails | None
    top_tokens: list[Token] | None = None

    @property
    def usage(self) -> CompletionUsage | None:
        """What was read and written, once that is known."""
        if self.details is None:
            return None
        read, written = self.details.input_length, self.details.generated_tokens
        return CompletionUsage(read, written, read + written)


def tell(chosen: Written, others: Sequence[Written], *, details: bool) -> list[GeneratedText]:
    """The answer that holds a text, with how it and others came about if ``details``."""
    if not details:
        return [GeneratedText(chosen.generated_text)]
    told = Details(
        finish_reason=chosen.finish_reason,
        generated_tokens=chosen.generated_tokens,
        seed=chosen.seed,
        prefill=chosen.prefill,
        tokens=chosen.tokens,
        top_tokens=chosen.top_tokens,
        best_of_sequences=list(others) or None,
    )
    return [GeneratedText(chosen.generated_text, told)]


class Spelling:
    """What tokens of a vocabulary add to a text, one after the other."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        self._num_symbols = len(vocabulary.symbols)
        self._separator = vocabulary.separator

    def token(self, name: str, logprob: float, *, is_first: bool) -> Token:
        """The token called ``name``; all but the first of a text bring their separator along."""
        index = self._ids[name]
        text = name if is_first else self._separator + name
        return Token(id=index, text=text, logprob=logprob, special=index >= self._num_symbols)

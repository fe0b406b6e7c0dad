"""Texts while a decoder continues them: a window at a time, or a few tokens at a time for a stream.

A model reads a window of tokens. A text that outgrows it goes on from the last half window, so its
length is not bound by the model.
"""

import bisect
import functools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models import generation
from models.blocks import TransformerConfig
from models.checkpoint import ModelCard
from models.generation import Sampling
from models.packed import PackedDecoder, pack_decoder
from service.batches import Ticket
from service.programs import Program, Ragged, Row, longest_of, make_grid
from service.registry import LoadedModel
from service.tasks.context import Context
from service.tasks.stops import Stop, StopSearch

WIRING = "decoder"
# How many tokens of a stream come at a time.
TOKENS_PER_PART = 4
# Temperatures and masses below it take the likeliest token, as their limit does; divided by or
# compared with in float32, they would overflow or vanish.
SMALLEST = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationOptions:
    """How texts are continued; ``stops`` end one and are no part of it."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stops: Sequence[Stop] = ()


class Continuation:
    """A prompt and what has come of it so far.

    ``seed`` and ``draw`` fix what is drawn. ``text`` is that of ``tokens``; ``log_probs`` are
    natural logarithms over the whole vocabulary, a row for each token. ``stop_at`` is where a stop
    begins in the text, once there is one: of several, the one that was complete first.
    """

    def __init__(
        self,
        model: LoadedModel,
        prompt: np.ndarray,
        options: GenerationOptions,
        *,
        seed: int,
        draw: int = 0,
    ) -> None:
        self.model = model
        self.prompt = prompt
        self.options = options
        self.tokens: list[int] = []
        self.log_probs: list[np.ndarray] = []
        self.stop_at: int | None = None
        self._key = seed, draw
        self._text = ""
        # Where each token ends in the text.
        self._ends: list[int] = []
        self._search = StopSearch(options.stops)

    @property
    def text(self) -> str:
        """What has been written, up to the stop."""
        return self._text[: self.stop_at]

    @property
    def is_running(self) -> bool:
        """Whether there is more to come."""
        return self.stop_at is None and len(self.tokens) < self.options.max_tokens

    @property
    def finish_reason(self) -> str | None:
        """Why nothing more comes: "stop" or "length"; None while something does."""
        if self.is_running:
            return None
        return "length" if self.stop_at is None else "stop"

    @property
    def num_kept(self) -> int:
        """How many tokens begin before the stop."""
        if self.stop_at is None:
            return len(self.tokens)
        return bisect.bisect_left(self._ends, self.stop_at) + 1 if self.stop_at else 0

    @property
    def num_settled(self) -> int:
        """How many tokens are certain: whatever comes, they are no part of a stop."""
        if not self.is_running:
            return self.num_kept
        return bisect.bisect_right(self._ends, len(self._text) - self._search.num_open)

    def mean_log_prob(self) -> float:
        """How likely what was drawn is, a token; of nothing, that of certainty."""
        worth = [row[token] for token, row in zip(self.tokens, self.log_probs, strict=True)]
        return float(np.mean(worth)) if worth else 0.0

    def begin_of(self, position: int) -> int:
        """Where the token at ``position`` begins in the text."""
        return self._ends[position - 1] if position else 0

    def text_of(self, position: int) -> str:
        """What the token at ``position`` is in the text."""
        return self.text[self.begin_of(position) : self._ends[position]]

    def extend(self, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """Adds what has been drawn, as far as the first stop."""
        names = self.model.card.vocabulary.tokens
        for token, row in zip(tokens.tolist(), log_probs, strict=True):
            self.tokens.append(token)
            self.log_probs.append(row)
            self._write(names[token])
            if self.stop_at is not None:
                break

    def _write(self, name: str) -> None:
        begin = len(self._text)
        self._text += name
        self._ends.append(len(self._text))
        for end, character in enumerate(name, begin + 1):
            length = self._search.add(character)
            if length is not None:
                self.stop_at = end - length
                break

    def window(self) -> Row:
        """The row from which the model goes on."""
        config = self.model.card.config
        size = config["max_seq_len"]
        text = np.concatenate([self.prompt, np.array(self.tokens, np.int32)])
        if len(text) >= size:
            text = text[-(size // 2) :]
        key = (*self._key, len(self.tokens))
        return {
            "tokens": np.concatenate([[config["vocab_size"]], text]),
            "max_new_tokens": min(self.options.max_tokens - len(self.tokens), size - len(text)),
            "temperature": self.options.temperature if self.options.temperature > SMALLEST else 0,
            "top_p": max(self.options.top_p, SMALLEST),
            "seed": np.random.SeedSequence(key).generate_state(1)[0],
        }


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for a decoder."""
    config = TransformerConfig(**card.config)
    ragged = Ragged(name="tokens", dtype=np.int32)
    grid = make_grid(config.max_seq_len, batch_sizes=(4, 16), shortest=16, factor=4)
    one, few = longest_of(grid, 1), longest_of(grid, 4)
    limit = ("max_new_tokens", np.int32(0))
    sampling = (
        ("temperature", np.float32(0)),
        ("top_p", np.float32(1)),
        ("seed", np.uint32(0)),
    )
    shapes = generation.packed_shapes(config)
    state = {name: np.zeros(shapes[name].shape[1:], shapes[name].dtype) for name in sorted(shapes)}

    def generate(
        model: PackedDecoder, tokens: Any, lengths: Any, limit: Any, *how: Any
    ) -> dict[str, Any]:
        return generation.generate(model, tokens, lengths, limit, Sampling(*how))._asdict()

    def score(model: PackedDecoder, tokens: Any, lengths: Any) -> dict[str, Any]:
        return {"log_probs": generation.score(model, tokens, lengths)}

    def read(model: PackedDecoder, tokens: Any, lengths: Any) -> dict[str, Any]:
        return _prefixed(generation.pack(generation.start(model, tokens, lengths)))

    def go_on(model: PackedDecoder, _: Any, __: Any, *arrays: Any) -> dict[str, Any]:
        how, packed = arrays[: len(sampling)], arrays[len(sampling) :]
        before = generation.unpack(model, dict(zip(state, packed, strict=True)))
        after, generated = generation.advance(model, before, Sampling(*how), TOKENS_PER_PART)
        return _prefixed(generation.pack(after)) | generated._asdict()

    program = functools.partial(Program, ragged=ragged, pack=pack_decoder)
    seldom = functools.partial(program, is_on_demand=True)
    return (
        program(
            name="generate",
            function=generate,
            scalars=(limit, *sampling),
            grid=grid,
            trial={"max_new_tokens": 1},
        ),
        seldom(name="score", function=score, grid=one),
        seldom(name="prompt", function=read, grid=few),
        seldom(
            name="continue",
            function=go_on,
            grid=few,
            scalars=sampling,
            arrays=lambda _: _prefixed(state),
        ),
    )


def _prefixed(state: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a state under names that nothing else of a row has."""
    return {f"state_{name}": array for name, array in state.items()}


async def score(
    context: Context, model: LoadedModel, prompts: Sequence[np.ndarray], ticket: Ticket
) -> list[np.ndarray]:
    """The log-probabilities of every symbol at each position of the prompts, given those before.

    The first is what the model expects of a text that it knows nothing of.
    """
    bos = model.card.config["vocab_size"]
    rows = [{"tokens": np.concatenate([[bos], prompt])} for prompt in prompts]
    outputs = await context.run(model, "score", rows, ticket)
    return [
        output["log_probs"][: len(prompt)] for output, prompt in zip(outputs, prompts, strict=True)
    ]


async def grow(context: Context, continuations: Sequence[Continuation], ticket: Ticket) -> None:
    """Continues every text until it is long enough or stops, one window at a time."""
    while growing := [c for c in continuations if c.is_running]:
        rows = [continuation.window() for continuation in growing]
        outputs = await context.run(growing[0].model, "generate", rows, ticket)
        for continuation, row, output in zip(growing, rows, outputs, strict=True):
            count = row["max_new_tokens"]
            continuation.extend(output["tokens"][:count], output["log_probs"][:count])


async def grow_in_parts(
    context: Context, continuations: Sequence[Continuation], ticket: Ticket
) -> AsyncGenerator[None, None]:
    """Does as ``grow`` does, and comes back whenever all that are running have grown a little.

    Between two parts the rows are back here, so they share batches with whatever other requests
    are at that moment, and nothing more is computed once nobody asks for more.
    """
    windows: dict[int, Row] = {}
    while growing := [index for index, c in enumerate(continuations) if c.is_running]:
        model = continuations[growing[0]].model
        full = [i for i in growing if i not in windows or not windows[i]["max_new_tokens"]]
        if full:
            rows = [continuations[index].window() for index in full]
            states = await context.run(model, "prompt", rows, ticket)
            for index, row, state in zip(full, rows, states, strict=True):
                windows[index] = row | state
        outputs = await context.run(model, "continue", [windows[i] for i in growing], ticket)
        for index, output in zip(growing, outputs, strict=True):
            row = windows[index]
            count = min(TOKENS_PER_PART, row["max_new_tokens"])
            continuations[index].extend(output["tokens"][:count], output["log_probs"][:count])
            left = row["max_new_tokens"] - count
            windows[index] = row | output | {"tokens": row["tokens"], "max_new_tokens": left}
        yield

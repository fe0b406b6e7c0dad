"""What every task needs: models, the queue, limits; and the checks that tasks share."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from models.vocabulary import UnknownSymbolError
from service.batcher import Batcher
from service.batches import Ticket
from service.engine import Slot
from service.errors import InvalidInput, MalformedRequest, NotReady
from service.programs import Asked, Result, Row
from service.registry import LoadedModel, Registry
from service.settings import Settings
from service.steps import together

Answer = TypeVar("Answer")
# Reading so many takes a fraction of a millisecond.
FEW_SYMBOLS = 512


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of the service that tasks work with."""

    registry: Registry
    batcher: Batcher
    settings: Settings

    async def run(
        self,
        model: LoadedModel,
        program: str,
        rows: Sequence[Row],
        ticket: Ticket,
        sizes: Sequence[int] | None = None,
    ) -> list[Result]:
        """The results of ``rows`` by one of the model's programs, in order.

        Rows whose ``sizes`` fall into one compiled length can share a batch; by default each is as
        long as it is, and with a larger one it joins longer rows. Threads that nobody else needs
        share rows, where they can.

        Raises:
            NotReady: if this is a rehearsal of what stays on disk until somebody asks for it.
        """
        ticket.task = str(model.card.task.get("name", ""))
        share = model.engine.programs[program].share
        num_threads = self.batcher.num_idle // max(len(rows), 1) if share else 1
        if share is None or num_threads < 2:
            return await self._submit(model, [(program, row) for row in rows], ticket, sizes)
        steps = together([share(row, num_threads) for row in rows])
        asked = next(steps)
        while True:
            results = await self._submit(model, asked, ticket)
            try:
                asked = steps.send(results)
            except StopIteration as end:
                return end.value

    async def _submit(
        self, model: LoadedModel, asked: Asked, ticket: Ticket, sizes: Sequence[int] | None = None
    ) -> list[Result]:
        programs = model.engine.programs
        if sizes is None:
            sizes = [len(row[programs[name].ragged.name]) for name, row in asked]
        groups = [
            (Slot(model.engine, name, programs[name].bucket(size)), row)
            for (name, row), size in zip(asked, sizes, strict=True)
        ]
        if ticket.is_rehearsal:
            for slot, _ in groups:
                if not slot.is_in_memory:
                    raise NotReady(f"{slot.program} stays on disk until somebody asks for it")
        return await self.batcher.submit(groups, ticket)

    def texts(self, inputs: str | list[str], param: str = "inputs") -> list[tuple[str, str]]:
        """The texts of a request, each with the name of its field.

        Raises:
            InvalidInput: if there are none or too many, or one is too long.
            MalformedRequest: if one holds a lone surrogate.
        """
        if isinstance(inputs, str):
            named = [(param, inputs)]
        else:
            named = [(f"{param}[{index}]", text) for index, text in enumerate(inputs)]
        self.require_count(len(named), param)
        for name, text in named:
            if len(text) > self.settings.max_text_len:
                raise InvalidInput(
                    f"expected at most {self.settings.max_text_len} characters, got {len(text)}",
                    name,
                )
            require_scalar_values(text, name)
        return named

    def require_count(self, count: int, param: str) -> None:
        """Checks how many inputs a request holds.

        Raises:
            InvalidInput: if there are none or too many.
        """
        if not 1 <= count <= self.settings.max_inputs:
            raise InvalidInput(
                f"expected 1 to {self.settings.max_inputs} inputs, got {count}", param
            )


def require_scalar_values(text: str, param: str) -> None:
    """Checks that ``text`` can be written in UTF-8.

    Raises:
        MalformedRequest: if it holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MalformedRequest(
            f"expected text in Unicode, got a lone surrogate at position {error.start}", param
        ) from None


def encode_text(model: LoadedModel, text: str, param: str, *, start: int = 0) -> np.ndarray:
    """The token ids of ``text``, normalised as in training.

    ``start`` is how many tokens come before it; messages count positions from there.

    Raises:
        InvalidInput: if a symbol is missing and the vocabulary has no unknown token.
    """
    vocabulary = model.card.vocabulary
    try:
        return vocabulary.encode(vocabulary.normalized(text))
    except UnknownSymbolError as error:
        moved = UnknownSymbolError(error.symbol, start + error.position, vocabulary.alphabet)
        raise InvalidInput(str(moved), param) from None


def require_length(length: int, limits: dict[str, int], param: str) -> None:
    """Checks a length in tokens against what a model takes.

    Raises:
        InvalidInput: if it is outside.
    """
    low, high = limits["min_len"], limits["max_len"]
    if not low <= length <= high:
        wanted = f"exactly {low}" if low == high else f"{low} to {high}"
        raise InvalidInput(f"expected {wanted} symbols, got {length}", param)


async def off_loop(function: Callable[[], Answer], size: int | None = None) -> Answer:
    """The result of ``function``, worked out in a thread so that others are served meanwhile.

    With a ``size`` of few symbols it is worked out at once, as the way to a thread and back takes
    longer than that.
    """
    if size is not None and size <= FEW_SYMBOLS:
        return function()
    return await asyncio.get_running_loop().run_in_executor(None, function)

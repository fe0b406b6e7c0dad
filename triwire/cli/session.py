"""What every command has at hand, and how it asks."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from triwire.calls.request import Call, StreamCall, as_events, in_plain_numbers
from triwire.cli.inputs import batches
from triwire.cli.screen import Screen
from triwire.client import Triwire
from triwire.errors import TriwireError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """The client, the options of the command, and where output goes."""

    client: Triwire
    options: argparse.Namespace
    screen: Screen

    def results(self, call: Call[T]) -> Iterator[T]:
        """The result of a call; with ``--json`` none, as the answer itself is written."""
        if self.options.json:
            plain = dataclasses.replace(in_plain_numbers(call), read=lambda answer: answer.text)
            self.screen.write(str(self.client.send(plain)))
        else:
            yield self.client.send(call)

    def results_of(
        self, inputs: Sequence[Any], call: Callable[[Any], Call[Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Every input with its result, of as many at a time as ``--batch-size`` says."""
        if len(inputs) == 1:
            yield from ((inputs[0], result) for result in self.results(call(inputs[0])))
            return
        start = 0
        for batch in batches(inputs, self.options.batch_size):
            try:
                for results in self.results(call(batch)):
                    yield from zip(batch, results, strict=True)
            except TriwireError as error:
                raise _placed(error, start, len(batch), len(inputs)) from error
            start += len(batch)

    def write_stream(self, call: StreamCall[Any, Any], tell: Callable[[Any], str]) -> None:
        """Writes what ``tell`` says of every event, in a line; with ``--json``, the events."""
        if self.options.json:
            for event in self.client.stream(as_events(in_plain_numbers(call))):
                self.screen.write(json.dumps(event, ensure_ascii=False))
            return
        for event in self.client.stream(call):
            self.screen.write_piece(tell(event))
        self.screen.write("")


def _placed(error: TriwireError, start: int, count: int, total: int) -> TriwireError:
    """The error of one batch, which counts its inputs from 0, among those of all inputs."""
    if count == total or not error.param:
        return error
    place = f"of inputs {start} to {start + count - 1}, counted from 0 there"
    error.message = f"{place}: {error.message}"
    error.args = (error.message,)
    return error

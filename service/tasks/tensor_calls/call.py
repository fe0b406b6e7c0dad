"""What the calls of all wirings share: a request's tensors, and results of different lengths."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from service.batches import Ticket
from service.errors import InvalidInput, MalformedRequest, TooLarge, TriwireError
from service.registry import LoadedModel
from service.schemas import Strict
from service.tasks.context import Context
from service.tasks.tensor_calls.signature import TensorSpec
from service.validation import explain

Schema = TypeVar("Schema", bound=Strict)

TEXT = TensorSpec(name="text", datatypes=("BYTES",), shape=(-1,), description="texts in UTF-8")
TOKENS = TensorSpec(
    name="tokens",
    datatypes=("INT32", "INT64"),
    shape=(-1, -1),
    description="token ids in place of text, INT32 or INT64, one row for each input",
)
LENGTHS = TensorSpec(
    name="lengths",
    datatypes=("INT32", "INT64"),
    shape=(-1,),
    description="how much of each row counts, INT32 or INT64; by default all of it",
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What was read and written, in tokens."""

    input_tokens: int
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Results:
    """Arrays by the names of outputs, at least those that are wanted."""

    outputs: Mapping[str, np.ndarray]
    usage: Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorCall:
    """A request for ``model``, the only one that ``context`` knows.

    ``inputs`` are arrays by name, those of BYTES of ``str``; ``wanted`` are names of outputs.
    """

    context: Context
    model: LoadedModel
    inputs: Mapping[str, np.ndarray]
    wanted: frozenset[str]
    parameters: Mapping[str, Any]
    ticket: Ticket

    @property
    def texts(self) -> list[str]:
        """The elements of ``text``."""
        return self.inputs["text"].tolist()

    def rows(self, name: str) -> list[np.ndarray]:
        """The rows of an input, each as long as ``lengths`` says.

        Raises:
            InvalidInput: if there are not as many lengths, or one is longer than its row.
        """
        array = self.inputs[name]
        lengths = self.inputs.get("lengths", np.full(len(array), array.shape[1]))
        if len(lengths) != len(array):
            raise InvalidInput(
                f"expected [{len(array)}], a length for each row of {name}, got [{len(lengths)}]",
                "lengths.shape",
            )
        wrong = np.flatnonzero((lengths < 0) | (lengths > array.shape[1]))
        if wrong.size:
            raise InvalidInput(
                f"expected a length from 0 to {array.shape[1]}, got {lengths[wrong[0]]}",
                f"lengths[{wrong[0]}]",
            )
        return [row[:length] for row, length in zip(array, lengths, strict=True)]

    def wants(self, *names: str) -> bool:
        """Whether one of these outputs is wanted."""
        return not self.wanted.isdisjoint(names)


def make_request(schema: type[Schema], **fields: Any) -> Schema:
    """The request of a native call.

    Raises:
        InvalidInput: if a value is not as its field takes it.
    """
    try:
        return schema(**fields)
    except ValidationError as error:
        # As if the fields had come in a body, which is how such errors are told.
        details = [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors()]
        param, message = explain(details)
        raise InvalidInput(message.removeprefix(f"{param}: "), param) from None


@contextlib.contextmanager
def told_as(**names: str) -> Iterator[None]:
    """Errors of native calls, told in terms of tensors.

    ``names`` say which fields those are; any other field is a parameter.

    Raises:
        TriwireError: what was raised inside, of the same type.
    """
    try:
        yield
    except (InvalidInput, MalformedRequest, TooLarge) as error:
        raise _renamed(error, names) from None


def _renamed(error: TriwireError, names: Mapping[str, str]) -> TriwireError:
    if error.param is None:
        return error
    head, bracket, index = error.param.partition("[")
    name, dot, rest = head.partition(".")
    told = names.get(name, f"parameters.{name}")
    return type(error)(error.message, f"{told}{dot}{rest}{bracket}{index}")


def pad(rows: Sequence[Any], fill: Any, dtype: Any, num_axes: int = 1) -> np.ndarray:
    """``rows`` as one array, each filled up to the longest along all of its axes."""
    arrays = [_array(row, dtype, num_axes) for row in rows]
    shape = np.max([array.shape for array in arrays], axis=0)
    padded = np.full((len(arrays), *shape), fill, dtype=dtype)
    for index, array in enumerate(arrays):
        padded[(index, *map(slice, array.shape))] = array
    return padded


def _array(row: Any, dtype: Any, num_axes: int) -> np.ndarray:
    array = np.array(row, dtype=dtype)
    # An empty list has one axis, whatever would have been in it.
    return array if array.ndim == num_axes else array.reshape((0,) * num_axes)


def pad_maps(maps: Sequence[np.ndarray], limit: int) -> np.ndarray:
    """Attention maps (layers, heads, T, S) as one array, filled up with zeros.

    Raises:
        TooLarge: if that is of more than ``limit`` weights.
    """
    shape = np.max([weights.shape for weights in maps], axis=0)
    total = len(maps) * int(np.prod(shape, dtype=np.int64))
    if total > limit:
        raise TooLarge(
            f"expected at most {limit} attention weights, with what fills them up to one shape, "
            f"got {total}; send fewer texts, or such as are of like length",
            "attention",
        )
    return pad(maps, 0, np.float32, num_axes=4)


def texts_array(texts: Sequence[str]) -> np.ndarray:
    """Texts as a tensor of BYTES."""
    return np.array(texts, dtype=object)

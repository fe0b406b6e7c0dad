"""Answers and arrays on the wire: JSON through orjson, or base64 of little-endian float32."""

import base64
import binascii
import dataclasses
import functools
import math
import operator
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import orjson
from pydantic import WithJsonSchema

from service.errors import InvalidInput

Encoding = Literal["float", "base64"]

FloatArray = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "Nested lists of numbers, or base64 of row-major little-endian float32.",
            "anyOf": [{"type": "array", "items": {}}, {"type": "string"}],
        }
    ),
]

# So many numbers, or texts, take a fraction of a millisecond.
FEW_VALUES = 1000
CHARACTERS_PER_VALUE = 64
# What holds them has counted them already.
SCALARS = frozenset((int, float, bool, type(None)))
JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS


def encode_array(array: np.ndarray, encoding: Encoding) -> np.ndarray | str:
    """``array`` in the form that the caller asked for, in float32."""
    plain = np.ascontiguousarray(array, dtype="<f4")
    return base64.b64encode(plain.tobytes()).decode() if encoding == "base64" else plain


def to_json(content: Any) -> bytes:
    """``content`` as JSON; numpy arrays are written as they are.

    A dataclass becomes an object; fields that are None by default and still so are left out.

    Raises:
        TypeError: if it holds what JSON cannot.
    """
    return _written(content, math.inf)


def to_json_if_small(content: Any) -> bytes | None:
    """``content`` as JSON; None where writing it takes longer than waking a thread to do so.

    Raises:
        TypeError: if it holds what JSON cannot.
    """
    try:
        return _written(content, FEW_VALUES)
    except _TooManyError:
        return None


def _written(content: Any, limit: int | float) -> bytes:
    plain = _Plain(limit).of(content)
    # What is left are dataclasses behind numbers in one list, which none of ours has.
    return orjson.dumps(plain, default=_Plain(math.inf).object, option=JSON_OPTIONS)


class _TooManyError(Exception):
    """There are more values than were to be looked at."""


class _Plain:
    """Makes lists and objects of content, and gives up on more than so many values."""

    def __init__(self, limit: int | float) -> None:
        self._left = limit

    def of(self, value: Any) -> Any:
        """``value``, with objects in place of dataclasses wherever they are.

        Raises:
            _TooManyError: if there is too much of it.
        """
        kind = type(value)
        if kind in SCALARS:
            return value
        if kind is str:
            self._take(len(value) // CHARACTERS_PER_VALUE)
        elif kind is list or kind is tuple:
            self._take(len(value))
            # Lists here hold things of one kind; numbers need not be looked at one by one.
            if value and type(value[0]) not in SCALARS:
                return [self.of(item) for item in value]
        elif kind is dict:
            self._take(len(value))
            return {key: self.of(item) for key, item in value.items()}
        elif kind is np.ndarray:
            self._take(value.size)
        elif dataclasses.is_dataclass(kind):
            return self.object(value)
        return value

    def object(self, value: Any) -> dict[str, Any]:
        """A dataclass as an object.

        Raises:
            TypeError: if it is none.
            _TooManyError: if there is too much of it.
        """
        shape = _shape(type(value))
        told = dict(zip(shape.names, shape.read(value), strict=True))
        self._take(len(told))
        for name in shape.optional:
            if told[name] is None:
                del told[name]
        for name in shape.texts:
            self._take(len(told[name] or "") // CHARACTERS_PER_VALUE)
        for name in shape.compound:
            if name in told:
                told[name] = self.of(told[name])
        return told

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooManyError


class _Shape(NamedTuple):
    """The fields of a dataclass.

    Those that are ``optional`` are None where nothing is to tell; ``texts`` are strings, and
    ``compound`` what may hold several values.
    """

    names: tuple[str, ...]
    optional: tuple[str, ...]
    texts: tuple[str, ...]
    compound: tuple[str, ...]
    read: Callable[[Any], Sequence[Any]]


@functools.cache
def _shape(kind: type) -> _Shape:
    fields, hints = dataclasses.fields(kind), typing.get_type_hints(kind)
    names = tuple(field.name for field in fields)
    optional = tuple(field.name for field in fields if field.default is None)
    texts = tuple(name for name in names if hints[name] is str)
    compound = tuple(name for name in names if hints[name] not in {*SCALARS, str})

    def read_one_by_one(value: Any) -> tuple[Any, ...]:
        return tuple(getattr(value, name) for name in names)

    # Which gives the value itself of a single name, and takes no fewer.
    read = operator.attrgetter(*names) if len(names) > 1 else read_one_by_one
    return _Shape(names, optional, texts, compound, read)


def decode_array(data: str, dtype: str, shape: list[int], param: str) -> np.ndarray:
    """The array that base64 ``data`` holds.

    Raises:
        InvalidInput: if it is not base64, or not as long as ``shape`` says.
    """
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("expected base64", f"{param}.data") from None
    item = np.dtype(dtype).newbyteorder("<")
    expected = item.itemsize
    for size in shape:
        expected *= size
    if len(raw) != expected:
        raise InvalidInput(
            f"expected {expected} bytes for {dtype} of shape {shape}, got {len(raw)}",
            f"{param}.data",
        )
    return np.frombuffer(raw, dtype=item).reshape(shape)

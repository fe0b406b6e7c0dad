"""Arrays on the wire: JSON numbers through orjson, or base64 of little-endian float32."""

import base64
import binascii
import dataclasses
import functools
import operator
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
JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS


def encode_array(array: np.ndarray, encoding: Encoding) -> np.ndarray | str:
    """``array`` in the form that the caller asked for, in float32."""
    plain = np.ascontiguousarray(array, dtype="<f4")
    return base64.b64encode(plain.tobytes()).decode() if encoding == "base64" else plain


# What holds them has counted them already.
SCALARS = frozenset((int, float, bool, type(None)))


def to_json(content: Any) -> bytes:
    """``content`` as JSON; numpy arrays are written as they are.

    A dataclass becomes an object; fields that are None by default and still so are left out.
    """
    return orjson.dumps(content, default=_to_object, option=JSON_OPTIONS)


def is_small(content: Any) -> bool:
    """Whether ``content`` is written faster than a thread is woken to do it."""
    left, waiting = FEW_VALUES, [content]
    while waiting and left >= 0:
        value = waiting.pop()
        kind = type(value)
        # Most of what there is; an answer is looked through for each request.
        if kind in SCALARS:
            continue
        if kind is str:
            left -= len(value) // CHARACTERS_PER_VALUE
        elif isinstance(value, list | tuple):
            left -= len(value)
            # What is too much already need not be looked into.
            waiting += value if left >= 0 else ()
        elif isinstance(value, dict):
            left -= len(value)
            waiting += value.values() if left >= 0 else ()
        elif isinstance(value, np.ndarray):
            left -= value.size
        elif dataclasses.is_dataclass(value):
            contents = _shape(kind).read(value)
            left -= len(contents)
            waiting += contents
    return left >= 0


def _to_object(value: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"expected a value that JSON can hold, got {type(value).__name__}")
    shape = _shape(type(value))
    told = dict(zip(shape.names, shape.read(value), strict=True))
    for name in shape.optional:
        if told[name] is None:
            del told[name]
    return told


class _Shape(NamedTuple):
    """The fields of a dataclass; those that are ``optional`` are None where nothing is to tell."""

    names: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[Any], Sequence[Any]]


@functools.cache
def _shape(kind: type) -> _Shape:
    fields = dataclasses.fields(kind)
    names = tuple(field.name for field in fields)
    optional = tuple(field.name for field in fields if field.default is None)
    if len(names) > 1:
        return _Shape(names, optional, operator.attrgetter(*names))
    # Which would give the value itself of a single name, and takes no fewer.
    return _Shape(names, optional, lambda value: tuple(getattr(value, name) for name in names))


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

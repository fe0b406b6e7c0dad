"""Arrays on the wire: JSON numbers through orjson, or base64 of little-endian float32."""

import base64
import binascii
import dataclasses
from typing import Annotated, Any, Literal

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

JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS


def encode_array(array: np.ndarray, encoding: Encoding) -> np.ndarray | str:
    """``array`` in the form that the caller asked for, in float32."""
    plain = np.ascontiguousarray(array, dtype="<f4")
    return base64.b64encode(plain.tobytes()).decode() if encoding == "base64" else plain


def to_json(content: Any) -> bytes:
    """``content`` as JSON; numpy arrays are written as they are.

    A dataclass becomes an object; fields that are None by default and still so are left out.
    """
    return orjson.dumps(content, default=_to_object, option=JSON_OPTIONS)


def _to_object(value: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"expected a value that JSON can hold, got {type(value).__name__}")
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.default is not None or getattr(value, field.name) is not None
    }


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

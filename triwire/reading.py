"""JSON to frozen dataclasses, by their annotations."""

import base64
import dataclasses
import functools
import types
import typing
from typing import Any

import numpy as np


class UnexpectedContent(ValueError):
    """JSON that is not what was expected; the message says where, what, and what came."""


def read(kind: Any, content: Any, where: str = "answer") -> Any:
    """``content`` as a ``kind``: a dataclass, a tuple, a union with None, or a plain type.

    Fields that a dataclass lacks are left out. What is a ``kind`` already stays as it is.

    Raises:
        UnexpectedContent: if it does not fit.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return content
    if origin in (types.UnionType, typing.Union):
        return _read_union(arguments, content, where)
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, content, where)
    if origin is tuple:
        items = _require(list, content, where)
        return tuple(read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if kind is float:
        return float(_require((int, float), content, where))
    return _require(origin or kind, content, where)


def _read_union(kinds: tuple[Any, ...], content: Any, where: str) -> Any:
    if content is None and types.NoneType in kinds:
        return None
    one, *others = (kind for kind in kinds if kind is not types.NoneType)
    return _require((one, *others), content, where) if others else read(one, content, where)


def _read_fields(kind: Any, content: Any, where: str) -> Any:
    if isinstance(content, kind):
        return content
    content = _require(dict, content, where)
    hints = _hints(kind)
    values = {
        name: to_array(content[name], content.get("shape"), f"{where}.{name}")
        if typing.get_origin(hint) is np.ndarray
        else read(hint, content[name], f"{where}.{name}")
        for name, hint in hints.items()
        if name in content
    }
    try:
        return kind(**values)
    except TypeError:
        raise UnexpectedContent(
            f"expected {where} with the fields {', '.join(hints)}, got {', '.join(content)}"
        ) from None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _require(kind: Any, content: Any, where: str) -> Any:
    # True is an integer to Python, and none to JSON.
    if isinstance(content, kind) and (kind in (bool, object) or not isinstance(content, bool)):
        return content
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    raise UnexpectedContent(f"expected {where} to be {names}, got {type(content).__name__}")


def to_array(content: Any, shape: Any, where: str) -> np.ndarray:
    """The float32 array that base64 or nested lists hold.

    Raises:
        UnexpectedContent: if they hold none of that shape; ``shape`` None takes any.
    """
    try:
        if isinstance(content, str):
            raw = bytearray(base64.b64decode(content, validate=True))
            array = np.frombuffer(raw, dtype="<f4")
        else:
            array = np.asarray(_require(list, content, where), dtype=np.float32)
        return array if shape is None else array.reshape(shape)
    except (TypeError, ValueError) as error:
        raise UnexpectedContent(
            f"expected {where} to be float32 of shape {shape}: {error}"
        ) from None

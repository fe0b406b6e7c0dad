"""What the tasks of the protocol have in common: their answers, and the names of fields."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.errors import TriwireError


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client is sent, and what was read and written for it, which it is not."""

    content: Any
    usage: Any


@contextlib.contextmanager
def naming(fields: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name the fields that the caller knows: of a native one, those of ``fields``.

    What is said of an item of a field counts for the item of the other, unless that has a line.
    """
    try:
        yield
    except TriwireError as error:
        param = error.param or ""
        field, bracket, rest = (param, "", "") if param in fields else param.partition("[")
        if field not in fields:
            raise
        raise type(error)(error.message, fields[field] + bracket + rest) from None

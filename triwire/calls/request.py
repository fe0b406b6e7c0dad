"""A call of the API as a value: what is sent, and how its answer is read."""

import dataclasses
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Generic, Literal, TypedDict, TypeVar

import httpx2

from triwire.answers import Origin, Usage
from triwire.errors import invalid
from triwire.reading import read

NPY = "application/x-npy"

T = TypeVar("T")
Event = TypeVar("Event")
R = TypeVar("R", bound="Request")
Texts = list[str] | tuple[str, ...]
Ids = list[int]


class AttentionChoice(TypedDict, total=False):
    """Which attention weights to give: layers and heads counted from 0, or the mean of heads."""

    layers: Literal["all"] | list[int]
    heads: Literal["all", "mean"] | list[int]


Attention = bool | AttentionChoice


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is sent: ``json``, or ``content`` as ``application/x-npy``, or nothing.

    ``is_probe`` where a 503 is an answer as good as any, so that nothing is tried again.
    """

    path: str
    method: Literal["GET", "POST"] = "POST"
    json: dict[str, Any] | None = None
    content: bytes | None = None
    params: dict[str, str] | None = None
    is_probe: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Call(Request, Generic[T]):
    """A request, and ``read``, which makes its answer a result."""

    read: Callable[[httpx2.Response], T]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamCall(Request, Generic[Event, T]):
    """A request that is answered by events, which make ``result`` once all have come.

    ``read_events`` gives those that are told, none of what is for the result only.
    """

    read_events: Callable[[Any], list[Event]]
    result: Callable[[list[Any], httpx2.Response], T]


def in_plain_numbers(request: R) -> R:
    """The same request, with arrays to be answered as nested lists of numbers."""
    body = dict(request.json or {})
    if "encoding_format" in body:
        body["encoding_format"] = "float"
    if "attention" in body:
        body["attention"] = body["attention"] | {"encoding": "float"}
    params = request.params and request.params | {"encoding_format": "float"}
    return dataclasses.replace(request, json=body if request.json else None, params=params)


def as_events(call: StreamCall[Any, Any]) -> StreamCall[Any, None]:
    """The same stream, with all of its events as they are in JSON."""
    return dataclasses.replace(
        call, read_events=lambda event: [event], result=lambda events, response: None
    )


def call_for_results(kind: Any, path: str, inputs: Any, **options: Any) -> Call[Any]:
    """A native call: one result for one text, a list for a list."""
    is_one = isinstance(inputs, str)
    return Call(
        path=path,
        json=body_of(inputs=listed(inputs), **options),
        read=lambda response: results_of(kind, response.json(), response, is_one=is_one),
    )


def results_of(kind: Any, content: Any, response: httpx2.Response, *, is_one: bool) -> Any:
    """The results of an answer, each with its origin; the first itself where ``is_one``."""
    origin = origin_of(content, response)
    results = [read(kind, result | {"origin": origin}) for result in content["results"]]
    return results[0] if is_one else results


def origin_of(content: Any, response: httpx2.Response) -> Origin:
    """Which model gave an answer, and what the headers say of it."""
    return Origin(
        model=content["model"],
        version=content.get("version"),
        usage=read(Usage, content.get("usage") or {}),
        request_id=response.headers.get("x-request-id"),
        timing_ms=_timing_ms(response.headers.get("server-timing", "")),
    )


def _timing_ms(header: str) -> dict[str, float]:
    parts = (part.strip().partition(";dur=") for part in header.split(","))
    return {name: float(value) for name, _, value in parts if value}


def encoded(attention: Attention) -> dict[str, Any] | None:
    """A choice of attention whose weights come as base64, in which float32 is exact."""
    if attention is False or attention is None:
        return None
    if attention is not True and not isinstance(attention, Mapping):
        raise invalid(
            "attention", f"expected a boolean or an object, got {type(attention).__name__}"
        )
    return (dict(attention) if attention is not True else {}) | {"encoding": "base64"}


def is_single(inputs: Any) -> bool:
    """Whether that is one input, a text or its token ids, and no list of such."""
    return isinstance(inputs, str) or (
        bool(inputs) and isinstance(inputs, list | tuple) and isinstance(inputs[0], Integral)
    )


def listed(inputs: Any) -> Any:
    """A tuple as JSON has it."""
    return list(inputs) if isinstance(inputs, tuple) else inputs


def body_of(**fields: Any) -> dict[str, Any]:
    """The fields that are given; of the others the service has defaults."""
    return {name: value for name, value in fields.items() if value is not None}

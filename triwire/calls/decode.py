"""``POST /v1/decode``, at once or as a stream."""

from typing import Any, TypedDict, Unpack, overload

import httpx2

from triwire.answers import DecodeResult, StreamedToken
from triwire.calls.request import (
    Attention,
    Call,
    StreamCall,
    Texts,
    body_of,
    call_for_results,
    encoded,
    listed,
    results_of,
)
from triwire.reading import read


class DecodeOptions(TypedDict, total=False):
    """Options of ``decode`` and ``decode_stream``."""

    max_new_tokens: int | None
    num_beams: int | None
    attention: Attention
    model: str | None


@overload
def decode(inputs: str, **options: Unpack[DecodeOptions]) -> Call[DecodeResult]: ...
@overload
def decode(inputs: Texts, **options: Unpack[DecodeOptions]) -> Call[list[DecodeResult]]: ...
def decode(
    inputs: str | Texts,
    *,
    max_new_tokens: int | None = None,
    num_beams: int | None = None,
    attention: Attention = False,
    model: str | None = None,
) -> Call[Any]:
    """What an encoder-decoder makes of a source, or of each of a list.

    ``num_beams`` above 1 searches that many targets at a time; ``attention`` gives all
    cross-attention maps, or those that an object chooses, and the alignment.

    Raises:
        TriwireError: if there is no such result.
    """
    body = _decode_body(max_new_tokens, num_beams, attention, model)
    return call_for_results(DecodeResult, "/v1/decode", inputs, **body)


@overload
def decode_stream(
    inputs: str, **options: Unpack[DecodeOptions]
) -> StreamCall[StreamedToken, DecodeResult]: ...
@overload
def decode_stream(
    inputs: Texts, **options: Unpack[DecodeOptions]
) -> StreamCall[StreamedToken, list[DecodeResult]]: ...
def decode_stream(
    inputs: str | Texts,
    *,
    max_new_tokens: int | None = None,
    num_beams: int | None = None,
    attention: Attention = False,
    model: str | None = None,
) -> StreamCall[StreamedToken, Any]:
    """The same, token by token; the stream's ``result`` is there after its last token.

    Raises:
        TriwireError: if there is no such result, or the stream breaks off.
    """
    options = _decode_body(max_new_tokens, num_beams, attention, model)

    def result(events: list[Any], response: httpx2.Response) -> Any:
        return results_of(DecodeResult, events[-1], response, is_one=isinstance(inputs, str))

    return StreamCall(
        path="/v1/decode",
        json=body_of(inputs=listed(inputs), stream=True, **options),
        read_events=lambda event: [] if "results" in event else [read(StreamedToken, event)],
        result=result,
    )


def _decode_body(
    max_new_tokens: int | None, num_beams: int | None, attention: Attention, model: str | None
) -> dict[str, Any]:
    return {
        "max_new_tokens": max_new_tokens,
        "num_beams": num_beams,
        "attention": encoded(attention),
        "model": model,
    }

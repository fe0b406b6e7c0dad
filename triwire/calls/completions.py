"""``POST /v1/completions``, at once or as a stream."""

from typing import Any, TypedDict, Unpack, overload

import httpx2

from triwire.answers import Choice, Completion, CompletionChunk, Origin
from triwire.calls.request import (
    Call,
    Ids,
    StreamCall,
    Texts,
    body_of,
    is_single,
    listed,
    origin_of,
)
from triwire.reading import read


class CompleteOptions(TypedDict, total=False):
    """Options of ``complete`` and ``complete_stream``."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    n: int | None
    best_of: int | None
    stop: str | Texts | None
    seed: int | None
    echo: bool
    logprobs: int | None
    model: str | None


@overload
def complete(prompt: str | Ids, **options: Unpack[CompleteOptions]) -> Call[Completion]: ...
@overload
def complete(
    prompt: Texts | list[Ids], **options: Unpack[CompleteOptions]
) -> Call[list[Completion]]: ...
def complete(
    prompt: str | Texts | Ids | list[Ids],
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    n: int | None = None,
    best_of: int | None = None,
    stop: str | Texts | None = None,
    seed: int | None = None,
    echo: bool = False,
    logprobs: int | None = None,
    model: str | None = None,
) -> Call[Any]:
    """A prompt, or each of a list, continued ``n`` times by at most ``max_tokens`` tokens.

    Token ids may stand for a prompt. ``temperature`` 0 takes the likeliest token; ``top_p`` keeps
    the likeliest of that mass; ``best_of`` are drawn, of which the ``n`` likeliest are given. Up to
    four strings ``stop`` it. The same ``seed`` draws the same text. ``echo`` puts the prompt first,
    and ``logprobs`` tells this many tokens that could have been.

    Raises:
        TriwireError: if there is no such result.
    """
    body = body_of(
        prompt=listed(prompt),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        n=n,
        best_of=best_of,
        stop=listed(stop),
        seed=seed,
        echo=echo or None,
        logprobs=logprobs,
        model=model,
    )
    is_one = is_single(prompt)

    def completions(response: httpx2.Response) -> Any:
        content = response.json()
        return _completions(content["choices"], n or 1, origin_of(content, response), is_one=is_one)

    return Call(path="/v1/completions", json=body, read=completions)


@overload
def complete_stream(
    prompt: str | Ids, **options: Unpack[CompleteOptions]
) -> StreamCall[CompletionChunk, Completion]: ...
@overload
def complete_stream(
    prompt: Texts | list[Ids], **options: Unpack[CompleteOptions]
) -> StreamCall[CompletionChunk, list[Completion]]: ...
def complete_stream(
    prompt: str | Texts | Ids | list[Ids], **options: Unpack[CompleteOptions]
) -> StreamCall[CompletionChunk, Any]:
    """The same, piece by piece; the stream's ``result`` is there after its last piece.

    Raises:
        TriwireError: if there is no such result, or the stream breaks off.
    """
    body = complete(prompt, **options).json or {}
    is_one, n = is_single(prompt), options.get("n") or 1

    def result(events: list[Any], response: httpx2.Response) -> Any:
        pieces = [choice for event in events for choice in event["choices"]]
        choices = [
            _joined([piece for piece in pieces if piece["index"] == index])
            for index in range(n if is_one else n * len(prompt))
        ]
        origin = origin_of(events[-1], response)
        return _completions(choices, n, origin, is_one=is_one)

    return StreamCall(
        path="/v1/completions",
        json=body | {"stream": True, "stream_options": {"include_usage": True}},
        read_events=lambda event: [read(CompletionChunk, choice) for choice in event["choices"]],
        result=result,
    )


def _completions(choices: list[Any], n: int, origin: Origin, *, is_one: bool) -> Any:
    found = [
        Completion(
            choices=tuple(read(Choice, choice) for choice in choices[start : start + n]),
            normalized=choices[start].get("normalized"),
            origin=origin,
        )
        for start in range(0, len(choices), n)
    ]
    return found[0] if is_one else found


def _joined(pieces: list[Any]) -> dict[str, Any]:
    """One choice of all its pieces."""
    logprobs: dict[str, list[Any]] = {}
    for piece in pieces:
        for name, values in (piece.get("logprobs") or {}).items():
            logprobs.setdefault(name, []).extend(values or [])
    return {
        "text": "".join(piece["text"] for piece in pieces),
        "finish_reason": pieces[-1].get("finish_reason") if pieces else None,
        "logprobs": logprobs or None,
        "normalized": next((p["normalized"] for p in pieces if p.get("normalized")), None),
    }

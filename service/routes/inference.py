"""``POST /v1/...``: the native calls."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from service.dependencies import ContextDep, TicketDep
from service.schemas import CompletionRequest, DecodeRequest, EmbeddingsRequest, FillMaskRequest
from service.streaming import event_stream
from service.tasks.complete import CompletionAnswer, complete
from service.tasks.complete_stream import complete_stream
from service.tasks.decode import DecodeAnswer, decode
from service.tasks.decode_stream import decode_stream
from service.tasks.embeddings import EmbeddingsAnswer, embeddings
from service.tasks.fill_mask import FillMaskAnswer, fill_mask
from service.transport import JsonResponse, StrictRoute, json_response


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """What went wrong; ``param`` names the field at fault."""

    message: str
    type: str
    param: str | None
    code: str
    request_id: str


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The body of every error."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "Malformed JSON or undecodable text"},
    401: {"model": ErrorAnswer, "description": "No API key, or an unknown one"},
    404: {"model": ErrorAnswer, "description": "No such model"},
    413: {"model": ErrorAnswer, "description": "Body or answer too large"},
    415: {"model": ErrorAnswer, "description": "A body of a type that the call does not take"},
    422: {
        "model": ErrorAnswer,
        "description": "A value is wrong: which, what was expected, what came",
    },
    429: {"model": ErrorAnswer, "description": "Queue full; see Retry-After"},
    500: {"model": ErrorAnswer, "description": "Our fault; the log tells more by the request id"},
    503: {"model": ErrorAnswer, "description": "Loading or draining; see Retry-After"},
    504: {"model": ErrorAnswer, "description": "Deadline passed"},
}

router = APIRouter(prefix="/v1", route_class=StrictRoute, responses=ERRORS)


@router.post("/fill-mask", responses={200: {"model": FillMaskAnswer}})
async def post_fill_mask(
    body: FillMaskRequest, context: ContextDep, ticket: TicketDep
) -> JsonResponse:
    """Candidates for every mask in one or many texts."""
    return await json_response(await fill_mask(context, body, ticket))


@router.post(
    "/decode", responses={200: {"model": DecodeAnswer, "content": {"text/event-stream": {}}}}
)
async def post_decode(
    request: Request, body: DecodeRequest, context: ContextDep, ticket: TicketDep
) -> Response:
    """Decodes one or many sources, with cross-attention maps on request."""
    if body.stream:
        return await event_stream(request, decode_stream(context, body, ticket))
    return await json_response(await decode(context, body, ticket))


@router.post("/embeddings", responses={200: {"model": EmbeddingsAnswer}})
async def post_embeddings(
    body: EmbeddingsRequest, context: ContextDep, ticket: TicketDep
) -> JsonResponse:
    """One vector for each of one or many texts or lists of token ids; the OpenAI schema."""
    return await json_response(await embeddings(context, body, ticket))


@router.post(
    "/completions",
    responses={200: {"model": CompletionAnswer, "content": {"text/event-stream": {}}}},
)
async def post_completions(
    request: Request, body: CompletionRequest, context: ContextDep, ticket: TicketDep
) -> Response:
    """Continues one or many texts; the OpenAI schema."""
    if body.stream:
        return await event_stream(request, complete_stream(context, body, ticket))
    return await json_response(await complete(context, body, ticket))

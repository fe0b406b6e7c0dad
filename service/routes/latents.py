"""``POST /v1/latents``: JSON or an ``.npy`` file in, either of them out."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from service.dependencies import ContextDep, TicketDep
from service.errors import InvalidInput
from service.npy import MEDIA_TYPE
from service.routes.inference import ERRORS
from service.schemas import LatentsOptions, LatentsRequest
from service.tasks.latents import LatentsAnswer, Summaries, latents, latents_of_npy
from service.transport import JsonResponse, StrictRequest, StrictRoute, body_kind

KINDS = (StrictRoute.kind, MEDIA_TYPE)
BINARY = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
# What OpenAPI says on top of what FastAPI finds out: the other kind of body, with its parameters.
ALSO: dict[str, Any] = {
    "requestBody": {"content": BINARY},
    "parameters": [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": f"With a body of {MEDIA_TYPE} only. {field.description}",
            "schema": {"type": "string"},
        }
        for name, field in LatentsOptions.model_fields.items()
    ],
}


class LatentsRoute(StrictRoute):
    """A route that takes JSON; what it tells others to send is what the path takes in all."""

    expected = KINDS


class NpyRoute(StrictRoute):
    """A route that takes ``.npy`` files, and leaves all other bodies to the next one."""

    kind = MEDIA_TYPE
    expected = KINDS

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether this route is for a request."""
        is_npy = scope["type"] == "http" and body_kind(Headers(scope=scope)) == self.kind
        return super().matches(scope) if is_npy else (Match.NONE, {})

    async def read(self, request: StrictRequest) -> StrictRequest:
        """The request, its body read up to the limit."""
        await request.body()
        return request


class NpyResponse(Response):
    """Latents as an ``.npy`` file; ``usage`` is for the metrics, as the file cannot hold it."""

    media_type = MEDIA_TYPE

    def __init__(self, summaries: Summaries) -> None:
        super().__init__(summaries.to_npy())
        self.usage = summaries.usage


npy_router = APIRouter(prefix="/v1", route_class=NpyRoute)
router = APIRouter(prefix="/v1", route_class=LatentsRoute, responses=ERRORS)


@npy_router.post("/latents", include_in_schema=False)
async def post_latents_npy(
    request: Request,
    options: Annotated[LatentsOptions, Query()],
    context: ContextDep,
    ticket: TicketDep,
) -> Response:
    """Reads an array, or each of a stack of them, into a fixed number of latent vectors."""
    summaries = await latents_of_npy(context, await request.body(), options, ticket)
    return await _answer(request, summaries, options)


@router.post(
    "/latents",
    responses={200: {"model": LatentsAnswer, "content": BINARY}},
    openapi_extra=ALSO,
)
async def post_latents(
    request: Request, body: LatentsRequest, context: ContextDep, ticket: TicketDep
) -> Response:
    """Reads one or many long inputs into a fixed number of latent vectors.

    The inputs are texts, or vectors as numbers, as base64 or as the body itself: a float32 array
    N x D or B x N x D in an .npy file. With ``Accept: application/x-npy`` the answer is one too.
    """
    if body.reconstruct and _wants_npy(request):
        raise InvalidInput(
            f"expected false where {MEDIA_TYPE} is accepted, which holds no text, got true",
            "reconstruct",
        )
    return await _answer(request, await latents(context, body, ticket), body)


async def _answer(
    request: Request, summaries: Summaries, options: LatentsOptions | LatentsRequest
) -> Response:
    if _wants_npy(request):
        return await run_in_threadpool(NpyResponse, summaries)
    return await run_in_threadpool(
        lambda: JsonResponse(summaries.to_answer(options.encoding_format))
    )


def _wants_npy(request: Request) -> bool:
    """Whether the caller names ``.npy`` among the kinds of answers to take."""
    kinds = request.headers.get("accept", "").lower().split(",")
    return any(kind.split(";")[0].strip() == MEDIA_TYPE for kind in kinds)

"""``/v2``: the Open Inference Protocol, version 2, with tensors as JSON or as raw bytes.

Every path of a model is served under ``/versions/{version}`` of it as well.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Receive, Scope

from service import tensor_bodies
from service.dependencies import ContextDep, LifecycleDep, TicketDep
from service.errors import Forbidden, UnsupportedMedia, excerpt
from service.registry import LoadedModel
from service.routes.inference import ERRORS
from service.tasks import tensor_calls
from service.tasks.tensor_calls import Inference
from service.tensor_bodies import LENGTH_HEADER
from service.tensor_schemas import (
    IndexedModel,
    InferAnswer,
    InferRequest,
    ModelConfig,
    ModelMetadata,
    ModelReady,
    ProtocolError,
    RepositoryIndexRequest,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from service.transport import JsonResponse, StrictRequest, StrictRoute, body_kind

BINARY = "application/octet-stream"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository(index)", "parameters"]
# The table of statuses, with the body that errors have here.
PROTOCOL_ERRORS = {status: {**told, "model": ProtocolError} for status, told in ERRORS.items()}
LOOKED_UP = {status: PROTOCOL_ERRORS[status] for status in (401, 404, 503)}
# What OpenAPI says of infer beside its JSON: raw bytes, and the header that tells where they begin.
ALSO: dict[str, Any] = {
    "requestBody": {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}},
    "parameters": [
        {
            "name": LENGTH_HEADER,
            "in": "header",
            "required": False,
            "description": "Bytes of JSON before the raw tensors; 0 where all is one raw text.",
            "schema": {"type": "integer"},
        }
    ],
}


class JsonPart(StrictRequest):
    """The JSON of a body, which its handler reads as if it were all; ``tail`` lies behind it."""

    def __init__(self, scope: Scope, receive: Receive, head: bytes, tail: bytes = b"") -> None:
        headers = MutableHeaders(raw=list(scope["headers"]))
        headers["Content-Type"] = "application/json"
        super().__init__({**scope, "headers": headers.raw}, receive)
        self._body = head
        self.tail = tail


class TensorRoute(StrictRoute):
    """A route that takes JSON with raw tensors behind it, whether its client names that or not."""

    expected = (StrictRoute.kind, BINARY)

    def require_kind(self, headers: Headers) -> None:
        """Checks that the body is of one of these types, or of none that is named."""
        kind = body_kind(headers)
        if kind and kind not in self.expected:
            raise UnsupportedMedia(
                f"expected {' or '.join(self.expected)}, got {excerpt(kind)}", "Content-Type"
            )

    async def read(self, request: StrictRequest) -> StrictRequest:
        """The JSON of the body, once all of it is decompressed and taken apart."""
        body = await request.body()
        coding = request.headers.get("content-encoding", "")
        limit = request.app.state.context.settings.max_body_bytes
        plain = await run_in_threadpool(tensor_bodies.decompress, body, coding, limit)
        parts = tensor_bodies.split(plain, request.headers.get(LENGTH_HEADER))
        part = JsonPart(request.scope, request.receive, parts.head, parts.tail)
        await part.json()
        return part


class IndexRoute(TensorRoute):
    """A route whose clients may leave the body out."""

    async def read(self, request: StrictRequest) -> StrictRequest:
        """The body, or an empty object in its place."""
        part = JsonPart(request.scope, request.receive, await request.body() or b"{}")
        await part.json()
        return part


class TensorResponse(Response):
    """Tensors as an answer; ``usage`` is for the metrics."""

    def __init__(self, inference: Inference, accepted_codings: str) -> None:
        body, headers = tensor_bodies.join(
            inference.answer, inference.tail, is_binary=inference.is_binary
        )
        body, more = tensor_bodies.compress(body, accepted_codings)
        super().__init__(body, headers={**headers, **more})
        self.usage = inference.usage


def _model(name: str, request: Request, context: ContextDep) -> LoadedModel:
    return tensor_calls.find(context.registry, name, request.path_params.get("version"))


ModelDep = Annotated[LoadedModel, Depends(_model)]

router = APIRouter(prefix="/v2")
infer_router = APIRouter(prefix="/v2", route_class=TensorRoute, responses=PROTOCOL_ERRORS)
index_router = APIRouter(prefix="/v2", route_class=IndexRoute, responses=PROTOCOL_ERRORS)


@router.get("/health/live", responses={200: {"model": ServerLive}})
async def get_live() -> JsonResponse:
    """The process is alive."""
    return JsonResponse(ServerLive(live=True))


@router.get("/health/ready", responses={200: {"model": ServerReady}, 503: LOOKED_UP[503]})
async def get_ready(lifecycle: LifecycleDep) -> JsonResponse:
    """The service takes requests; 503 with the reason otherwise."""
    lifecycle.require_ready()
    return JsonResponse(ServerReady(ready=True))


@router.get("", responses={200: {"model": ServerMetadata}, 401: LOOKED_UP[401]})
@router.get("/", include_in_schema=False)
async def get_server(request: Request) -> JsonResponse:
    """Who serves, and which extensions of the protocol."""
    return JsonResponse(ServerMetadata("triwire", request.app.version, EXTENSIONS))


@router.get("/models/{name}", responses={200: {"model": ModelMetadata}, **LOOKED_UP})
@router.get("/models/{name}/versions/{version}", include_in_schema=False)
async def get_metadata(model: ModelDep, context: ContextDep) -> JsonResponse:
    """The tensors that a model takes and gives, and its parameters, with what each is."""
    return JsonResponse(tensor_calls.metadata(context.registry, model))


@router.get("/models/{name}/config", responses={200: {"model": ModelConfig}, **LOOKED_UP})
@router.get("/models/{name}/versions/{version}/config", include_in_schema=False)
async def get_config(model: ModelDep) -> JsonResponse:
    """The same tensors, as Triton's configuration of a model has them."""
    return JsonResponse(tensor_calls.config(model))


@router.get("/models/{name}/ready", responses={200: {"model": ModelReady}, **LOOKED_UP})
@router.get("/models/{name}/versions/{version}/ready", include_in_schema=False)
async def get_model_ready(model: ModelDep, lifecycle: LifecycleDep) -> JsonResponse:
    """A model takes requests; 503 with the reason otherwise."""
    lifecycle.require_ready()
    return JsonResponse(ModelReady(model.card.name, ready=True))


@infer_router.post(
    "/models/{name}/infer", responses={200: {"model": InferAnswer}}, openapi_extra=ALSO
)
@infer_router.post("/models/{name}/versions/{version}/infer", include_in_schema=False)
async def post_infer(
    request: Request, body: InferRequest, model: ModelDep, context: ContextDep, ticket: TicketDep
) -> Response:
    """Tensors in, tensors out, each of them as JSON or as raw bytes behind it."""
    assert isinstance(request, JsonPart)
    inference = await tensor_calls.infer(context, model, body, request.tail, ticket)
    accepted = request.headers.get("accept-encoding", "")
    return await run_in_threadpool(TensorResponse, inference, accepted)


@index_router.post("/repository/index", responses={200: {"model": list[IndexedModel]}})
async def post_index(body: RepositoryIndexRequest, context: ContextDep) -> JsonResponse:
    """What is loaded, what is loading, and what could not be loaded and why."""
    return JsonResponse(tensor_calls.index(context.registry, ready=body.ready))


@router.post("/repository/models/{name}/load", include_in_schema=False)
@router.post("/repository/models/{name}/unload", include_in_schema=False)
async def post_load(name: str) -> Response:
    """Refused: which models are served is a setting, and what has changed on disk is reloaded."""
    raise Forbidden(
        "expected models to be chosen by the setting models, and loaded anew by SIGHUP or by "
        f"POST /v1/models/NAME/reload, got a request to load or unload {excerpt(name)}"
    )

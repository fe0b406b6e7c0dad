"""``/v1/models``: what is loaded, in the OpenAI list with more fields, and loading it anew."""

from typing import Any

from fastapi import APIRouter, Response

from service.dependencies import ContextDep, KeysDep, LoaderDep
from service.errors import Forbidden, ModelNotFound, excerpt
from service.registry import LoadedModel, Registry
from service.routes.inference import ERRORS
from service.transport import JsonResponse

router = APIRouter(prefix="/v1", responses={status: ERRORS[status] for status in (401, 404, 503)})


@router.get("/models")
async def get_models(context: ContextDep) -> JsonResponse:
    """Every loaded model."""
    registry = context.registry
    registry.require_ready()
    models = [describe(registry, model) for model in registry.models.values()]
    return JsonResponse({"object": "list", "data": models})


@router.get("/models/{name}")
async def get_model(name: str, context: ContextDep) -> JsonResponse:
    """One loaded model; ``failure`` says why its last load failed, where it did."""
    return JsonResponse(describe(context.registry, context.registry.find(name)))


@router.post(
    "/models/{name}/reload",
    status_code=202,
    responses={403: {**ERRORS[401], "description": "No API keys are set up"}},
)
async def post_reload(
    name: str, context: ContextDep, keys: KeysDep, loader: LoaderDep
) -> JsonResponse:
    """Loads a model anew in the background; the one that is loaded serves until it is replaced.

    Only where API keys are set up, as anyone could keep the service busy otherwise.
    """
    if not keys.are_there:
        raise Forbidden("expected API keys to be set up, got none; send SIGHUP to the process")
    context.registry.require_known(name)
    loader.start(name)
    return JsonResponse({"id": name, "object": "model", "status": "loading"}, status_code=202)


@router.get("/models/{name}/plots/{plot}", response_class=Response)
async def get_plot(name: str, plot: str, context: ContextDep) -> Response:
    """A picture of a model, as PNG; ``plots`` of the model names them."""
    plots = context.registry.find(name).plots
    if plot not in plots:
        raise ModelNotFound(f"expected one of {sorted(plots)}, got {excerpt(plot)}", "plot")
    return Response(plots[plot], media_type="image/png")


def describe(registry: Registry, model: LoadedModel) -> dict[str, Any]:
    """What clients may know of a model."""
    card = model.card
    target = card.target_vocabulary or card.vocabulary
    is_filler = card.task.get("name") == "fill-mask"
    return {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "triwire",
        "wiring": card.wiring,
        "task": card.task,
        "version": card.version,
        "versions": [other.card.version for other in registry.versions(card.name)],
        "loading": registry.loading.get(card.name),
        "failure": registry.failures.get(card.name),
        "limits": card.limits,
        "alphabet": card.vocabulary.alphabet,
        "separator": card.vocabulary.separator,
        "target_alphabet": target.alphabet,
        "target_separator": target.separator,
        "normalization": card.vocabulary.normalization,
        "mask_token": card.task.get("mask_token") if is_filler else None,
        "config": card.config,
        "recipe": card.recipe,
        "corpus": card.corpus,
        "figures": card.figures,
        "plots": sorted(model.plots),
    }

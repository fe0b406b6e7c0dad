"""``GET /v1/models``: what is loaded, in the OpenAI list with more fields."""

from typing import Any

from fastapi import APIRouter

from service.dependencies import ContextDep
from service.registry import LoadedModel
from service.routes.inference import ERRORS
from service.transport import JsonResponse

router = APIRouter(prefix="/v1", responses={status: ERRORS[status] for status in (404, 503)})


@router.get("/models")
async def get_models(context: ContextDep) -> JsonResponse:
    """Every loaded model."""
    context.registry.require_ready()
    models = context.registry.models.values()
    return JsonResponse({"object": "list", "data": [describe(model) for model in models]})


@router.get("/models/{name}")
async def get_model(name: str, context: ContextDep) -> JsonResponse:
    """One loaded model."""
    return JsonResponse(describe(context.registry.find(name)))


def describe(model: LoadedModel) -> dict[str, Any]:
    """What clients may know of a model."""
    card = model.card
    is_filler = card.task.get("name") == "fill-mask"
    return {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "triwire",
        "wiring": card.wiring,
        "task": card.task,
        "version": card.version,
        "versions": [card.version],
        "limits": card.limits,
        "alphabet": card.vocabulary.alphabet,
        "normalization": card.vocabulary.normalization,
        "mask_token": card.task.get("mask_token") if is_filler else None,
        "config": card.config,
        "figures": card.figures,
    }

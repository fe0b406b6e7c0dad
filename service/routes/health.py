"""``/livez`` says that the process answers, ``/readyz`` that it can serve."""

from fastapi import APIRouter

from service.dependencies import ContextDep
from service.errors import NotReady
from service.routes.inference import ERRORS
from service.transport import JsonResponse

router = APIRouter()


@router.get("/livez")
async def get_livez() -> JsonResponse:
    """The process is alive."""
    return JsonResponse({"status": "alive"})


@router.get("/readyz", responses={503: ERRORS[503]})
@router.get("/health", responses={503: ERRORS[503]})
async def get_readyz(context: ContextDep) -> JsonResponse:
    """A model is loaded and compiled, and the worker runs; 503 otherwise.

    ``failures`` says of every bundle that could not be loaded why.
    """
    context.registry.require_ready()
    if not context.batcher.is_alive:
        raise NotReady("expected a running worker, got none")
    return JsonResponse(
        {
            "status": "ready",
            "models": sorted(context.registry.models),
            "failures": context.registry.failures,
        }
    )

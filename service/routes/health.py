"""``/livez``: the process answers; ``/readyz``: it can serve; ``/metrics``: how it does."""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from service.dependencies import ContextDep, LifecycleDep
from service.routes.inference import ERRORS
from service.transport import JsonResponse

router = APIRouter()


@router.get("/livez")
async def get_livez() -> JsonResponse:
    """The process is alive."""
    return JsonResponse({"status": "alive"})


@router.get("/readyz", responses={503: ERRORS[503]})
@router.get("/health", responses={503: ERRORS[503]})
async def get_readyz(context: ContextDep, lifecycle: LifecycleDep) -> JsonResponse:
    """Models are loaded, compiled and tried out, and the worker runs; 503 otherwise.

    ``failures`` says of every bundle that could not be loaded why.
    """
    lifecycle.require_ready()
    return JsonResponse(
        {
            "status": "ready",
            "models": sorted(context.registry.models),
            "failures": context.registry.failures,
        }
    )


@router.get("/metrics", response_class=Response)
async def get_metrics(request: Request) -> Response:
    """Counters and gauges for Prometheus, in the text format that it asks for."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(
        encode(request.app.state.metrics.registry), headers={"Content-Type": content_type}
    )

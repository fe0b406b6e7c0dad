"""``/models/{name}``: the protocol of the Hugging Face Inference API, for its clients unmodified.

Every task has an address of its own, and a model's address does what the request is for.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from service.dependencies import ContextDep, LifecycleDep, TicketDep
from service.errors import ModelNotFound, excerpt
from service.hugging_face import (
    MAX_BEST_OF,
    MAX_STOPS,
    FeatureExtractionInput,
    FillMaskInput,
    SentenceSimilarityInput,
    TextGenerationInput,
    TranslationInput,
)
from service.registry import LoadedModel
from service.routes import inference
from service.streaming import event_stream
from service.tasks.context import Context
from service.tasks.hugging_face.answer import Answer
from service.tasks.hugging_face.decoding import Summary, Translation, summarize, translate
from service.tasks.hugging_face.feature_extraction import extract
from service.tasks.hugging_face.fill_mask import FillMaskElement, fill
from service.tasks.hugging_face.offers import (
    FEATURE_EXTRACTION,
    FILL_MASK,
    SENTENCE_SIMILARITY,
    TASKS,
    TEXT_GENERATION,
    implied_task,
)
from service.tasks.hugging_face.sentence_similarity import compare
from service.tasks.hugging_face.text_generation import generate, generate_stream
from service.tasks.hugging_face.written import GeneratedText
from service.transport import JsonResponse, StrictRoute, json_response
from service.validation import validated


@dataclass(frozen=True, slots=True)
class HuggingFaceError:
    """The body of every error; ``error`` names the field at fault, what was expected, what came."""

    error: str
    error_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """What a client may want to know before it calls.

    ``max_input_length`` and ``min_input_length`` count tokens; longer texts with masks are read in
    windows of that length. ``mask_token`` is null where a model has none.
    """

    model_id: str
    model_version: int
    model_dtype: str
    model_pipeline_tag: str
    tasks: list[str]
    wiring: str
    mask_token: str | None
    min_input_length: int
    max_input_length: int
    max_client_batch_size: int
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    version: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {**told, "model": HuggingFaceError} for status, told in inference.ERRORS.items()
}
EVENTS = {"text/event-stream": {}}

router = APIRouter(prefix="/models/{name}", route_class=StrictRoute, responses=ERRORS)


@router.post("/fill-mask", responses={200: {"model": list[FillMaskElement]}})
async def post_fill_mask(
    name: str, body: FillMaskInput, context: ContextDep, ticket: TicketDep
) -> JsonResponse:
    """Candidates for every mask of one or many texts, in the shapes of the pipeline.

    One mask has a list of candidates, several have a list of such lists, and several texts a list
    of either.
    """
    return await _encoded(await fill(context, name, body, ticket))


@router.post("/feature-extraction", responses={200: {"model": list[Any]}})
async def post_feature_extraction(
    name: str, body: FeatureExtractionInput, context: ContextDep, ticket: TicketDep
) -> JsonResponse:
    """The states of every token of a text (N x D), or the latents that it is read into (M x D).

    A list of texts gives a list of these.
    """
    return await _encoded(await extract(context, name, body, ticket))


@router.post("/sentence-similarity", responses={200: {"model": list[float]}})
async def post_sentence_similarity(
    name: str, body: SentenceSimilarityInput, context: ContextDep, ticket: TicketDep
) -> JsonResponse:
    """The cosine between the embedding of one text and that of each of some others."""
    return await _encoded(await compare(context, name, body, ticket))


@router.post(
    "/text-generation",
    responses={200: {"model": list[GeneratedText], "content": EVENTS}},
)
async def post_text_generation(
    request: Request, name: str, body: TextGenerationInput, context: ContextDep, ticket: TicketDep
) -> Response:
    """A prompt continued by a decoder, or what an encoder-decoder makes of it."""
    if body.stream:
        return await event_stream(request, generate_stream(context, name, body, ticket))
    return await _encoded(await generate(context, name, body, ticket))


@router.post("/translation", responses={200: {"model": list[Translation]}})
async def post_translation(
    name: str, body: TranslationInput, context: ContextDep, ticket: TicketDep
) -> JsonResponse:
    """What an encoder-decoder makes of a text, as its translation."""
    return await _encoded(await translate(context, name, body, ticket))


@router.post("/summarization", responses={200: {"model": list[Summary]}})
async def post_summarization(
    name: str, body: TranslationInput, context: ContextDep, ticket: TicketDep
) -> JsonResponse:
    """What an encoder-decoder makes of a text, as its summary."""
    return await _encoded(await summarize(context, name, body, ticket))


async def _encoded(answer: Answer) -> JsonResponse:
    """What a task answers; its usage is for the metrics, as the shapes cannot hold it."""
    return await json_response(answer.content, answer.usage)


# What a model's own address may be asked for beside text generation, which can be streamed.
CALLS: dict[str, tuple[type[BaseModel], Callable[..., Awaitable[Response]]]] = {
    FILL_MASK: (FillMaskInput, post_fill_mask),
    FEATURE_EXTRACTION: (FeatureExtractionInput, post_feature_extraction),
    SENTENCE_SIMILARITY: (SentenceSimilarityInput, post_sentence_similarity),
}
SCHEMAS = (*(schema for schema, _ in CALLS.values()), TextGenerationInput)
# What OpenAPI says of a body that is one of several; their schemas come with the calls above.
ANY_OF_THEM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": f"#/components/schemas/{schema.__name__}"} for schema in SCHEMAS
                    ],
                    "examples": [
                        example
                        for schema in SCHEMAS
                        for example in schema.model_json_schema()["examples"]
                    ],
                }
            }
        },
    }
}


@router.post(
    "",
    responses={200: {"description": "As that task answers", "content": EVENTS}},
    openapi_extra=ANY_OF_THEM,
)
async def post_model(
    request: Request, name: str, context: ContextDep, ticket: TicketDep
) -> Response:
    """The task that a request is for, by the model's wiring and the shape of the body.

    Of an encoder: fill-mask where there are ``parameters``, even empty ones, else feature
    extraction. Of a Perceiver: feature extraction. Of both: sentence similarity where the inputs
    are an object. Of a decoder or an encoder-decoder: text generation.
    """
    body = await request.json()
    task = implied_task(context.registry.find(name), body)
    if task == TEXT_GENERATION:
        generation = validated(TextGenerationInput, body)
        return await post_text_generation(request, name, generation, context, ticket)
    schema, call = CALLS[task]
    return await call(name, validated(schema, body), context, ticket)


@router.get("/health")
@router.get("/{task}/health")
async def get_health(
    name: str, context: ContextDep, lifecycle: LifecycleDep, task: str | None = None
) -> JsonResponse:
    """The service is ready, and the model is loaded; 503 otherwise."""
    lifecycle.require_ready()
    _find(context, name, task)
    return JsonResponse({"status": "ready"})


@router.get("/info", responses={200: {"model": ModelInfo}})
@router.get("/{task}/info", responses={200: {"model": ModelInfo}})
async def get_info(
    request: Request, name: str, context: ContextDep, task: str | None = None
) -> JsonResponse:
    """What the model does, the mask that it knows and how long texts may be."""
    model = _find(context, name, task)
    return JsonResponse(_describe(model, context, request.app.version))


def _find(context: Context, name: str, task: str | None) -> LoadedModel:
    model = context.registry.find(name)
    tasks = TASKS[model.card.wiring]
    if task is not None and task not in tasks:
        raise ModelNotFound(
            f"expected a task of {name} ({', '.join(tasks)}), got {excerpt(task)}", "task"
        )
    return model


def _describe(model: LoadedModel, context: Context, version: str) -> ModelInfo:
    card, settings = model.card, context.settings
    tasks = TASKS[card.wiring]
    return ModelInfo(
        model_id=card.name,
        model_version=card.version,
        model_dtype=settings.dtype,
        model_pipeline_tag=tasks[0],
        tasks=list(tasks),
        wiring=card.wiring,
        mask_token=card.task.get("mask_token"),
        min_input_length=card.limits["min_len"],
        max_input_length=card.limits["max_len"],
        max_client_batch_size=settings.max_inputs,
        max_concurrent_requests=settings.max_concurrent_requests,
        max_best_of=MAX_BEST_OF,
        max_stop_sequences=MAX_STOPS,
        version=version,
    )

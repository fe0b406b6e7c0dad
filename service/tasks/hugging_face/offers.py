"""Which tasks of the protocol a model does, by its wiring, and which one a request is for."""

from typing import Any

from service.errors import InvalidInput
from service.registry import LoadedModel
from service.tasks import continuation, decode, fill_mask, latents
from service.tasks.context import Context

FILL_MASK = "fill-mask"
FEATURE_EXTRACTION = "feature-extraction"
SENTENCE_SIMILARITY = "sentence-similarity"
TEXT_GENERATION = "text-generation"
TRANSLATION = "translation"
SUMMARIZATION = "summarization"

# The first is what a model is asked for where the request says nothing else.
TASKS: dict[str, tuple[str, ...]] = {
    fill_mask.WIRING: (FILL_MASK, FEATURE_EXTRACTION, SENTENCE_SIMILARITY),
    latents.WIRING: (FEATURE_EXTRACTION, SENTENCE_SIMILARITY),
    continuation.WIRING: (TEXT_GENERATION,),
    decode.WIRING: (TEXT_GENERATION, TRANSLATION, SUMMARIZATION),
}


def find(context: Context, name: str, task: str) -> LoadedModel:
    """The model of that name, which does ``task``.

    Raises:
        ModelNotFound: if there is none.
        InvalidInput: if it does other tasks only.
        NotReady: if models are still loading, or this one could not be loaded.
    """
    model = context.registry.find(name)
    tasks = TASKS[model.card.wiring]
    if task not in tasks:
        raise InvalidInput(f"expected a task of {name} ({', '.join(tasks)}), got {task}", "task")
    return model


def implied_task(model: LoadedModel, body: Any) -> str:
    """The task that a request to a model is for, by how clients write the requests of each.

    Sentences to compare are an object; the options of feature extraction lie beside its inputs,
    where those of all other tasks are under ``parameters``, which is sent even if it is empty.
    """
    tasks = TASKS[model.card.wiring]
    fields = body if isinstance(body, dict) else {}
    if SENTENCE_SIMILARITY in tasks and isinstance(fields.get("inputs"), dict):
        return SENTENCE_SIMILARITY
    if FEATURE_EXTRACTION in tasks and fields and "parameters" not in fields:
        return FEATURE_EXTRACTION
    return tasks[0]

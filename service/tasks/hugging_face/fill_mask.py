"""Fill-mask in the shape of the pipeline: candidates for each mask, with the text that they make.

One mask gives a list of candidates, several give a list of such lists, and a list of texts a list
of either; a list of one text counts as that text.
"""

from dataclasses import dataclass
from typing import Any

from models.vocabulary import MASK
from service.batches import Ticket
from service.errors import InvalidInput
from service.hugging_face import FillMaskInput, FillMaskParameters
from service.schemas import FillMaskRequest
from service.tasks.context import Context
from service.tasks.fill_mask import FillMaskResult, fill_mask
from service.tasks.hugging_face.answer import Answer, naming
from service.tasks.hugging_face.offers import FILL_MASK, find

# The mask of other models, which users of the protocol know best.
FOREIGN_MASK = "[MASK]"
FIELDS = {"top_k": "parameters.top_k", "targets": "parameters.targets"}


@dataclass(frozen=True, slots=True)
class FillMaskElement:
    """A candidate for a mask; ``sequence`` is the text as read with it, other masks kept."""

    score: float
    token: int
    token_str: str
    sequence: str


async def fill(context: Context, name: str, request: FillMaskInput, ticket: Ticket) -> Answer:
    """Candidates for every mask of one or many texts.

    Raises:
        InvalidInput: if the model fills no masks, a text holds none, too many or one of another
            model, or a target is no symbol.
    """
    model = find(context, name, FILL_MASK)
    texts = context.texts(request.inputs)
    _require_own_masks(texts)
    parameters = request.parameters or FillMaskParameters()
    targets = parameters.targets
    native = FillMaskRequest(
        model=model.card.name,
        inputs=request.inputs,
        top_k=parameters.top_k,
        targets=[targets] if isinstance(targets, str) else targets,
    )
    with naming(FIELDS):
        answer = await fill_mask(context, native, ticket)
    told = [_elements(result) for result in answer.results]
    return Answer(told[0] if len(told) == 1 else told, answer.usage)


def _require_own_masks(texts: list[tuple[str, str]]) -> None:
    for param, text in texts:
        if FOREIGN_MASK in text:
            raise InvalidInput(f"expected masks {MASK!r}, got {FOREIGN_MASK!r}", param)


def _elements(result: FillMaskResult) -> list[Any]:
    """What a pipeline tells of one text."""
    # Of a text as it was read, nothing but masks looks like one.
    parts = result.normalized.split(MASK)
    told = [
        [
            FillMaskElement(
                score=candidate.score,
                token=candidate.token_id,
                token_str=candidate.token,
                sequence=MASK.join(parts[: mask.index + 1])
                + candidate.token
                + MASK.join(parts[mask.index + 1 :]),
            )
            for candidate in mask.candidates
        ]
        for mask in result.masks
    ]
    return told[0] if len(told) == 1 else told

"""Feature extraction: what a model makes of a text, before anything is pooled.

That is the state of every token of an encoder (N x D), or the latents of a Perceiver (M x D). For
clients it is one array, so texts of a list must give arrays of one shape.
"""

import numpy as np

from models.vocabulary import MASK
from service.batches import Ticket
from service.errors import InvalidInput
from service.hugging_face import FeatureExtractionInput
from service.registry import LoadedModel
from service.tasks import latents, states
from service.tasks.context import Context, encode_text, off_loop, require_length
from service.tasks.embeddings import EmbeddingsUsage
from service.tasks.hugging_face.answer import Answer
from service.tasks.hugging_face.offers import FEATURE_EXTRACTION, find


async def extract(
    context: Context, name: str, request: FeatureExtractionInput, ticket: Ticket
) -> Answer:
    """The states, or the latents, of one or many texts.

    Raises:
        InvalidInput: if the model gives none, a text is longer than it reads and not to be cut, or
            texts do not fit into one array.
    """
    model = find(context, name, FEATURE_EXTRACTION)
    _require_servable(model, request)
    texts = context.texts(request.inputs)
    rows = await off_loop(lambda: [_tokens(model, text, request, param) for param, text in texts])
    is_perceiver = model.card.wiring == latents.WIRING
    if not is_perceiver:
        _require_one_length(rows)
    program = latents.OF_TEXT if is_perceiver else states.PROGRAM
    outputs = await context.run(model, program, [{"tokens": row} for row in rows], ticket)
    arrays = [
        output["latents"] if is_perceiver else output["states"][: len(row)]
        for row, output in zip(rows, outputs, strict=True)
    ]
    vectors = await off_loop(lambda: _vectors(arrays, normalize=bool(request.normalize)))
    num_tokens = sum(map(len, rows))
    content = vectors[0] if isinstance(request.inputs, str) else vectors
    return Answer(content, EmbeddingsUsage(num_tokens, num_tokens))


def _require_servable(model: LoadedModel, request: FeatureExtractionInput) -> None:
    width = model.card.config["embed_dim"]
    if request.dimensions not in (None, width):
        raise InvalidInput(
            f"expected {width}, the width of {model.card.name}, got {request.dimensions}",
            "dimensions",
        )
    if request.truncation_direction and not request.truncate:
        raise InvalidInput(
            f"expected null where truncate is not true, got {request.truncation_direction!r}",
            "truncation_direction",
        )


def _tokens(
    model: LoadedModel, text: str, request: FeatureExtractionInput, param: str
) -> np.ndarray:
    """The token ids of a text, cut where that is asked for; masks in it are masks."""
    ids = _encode(model, text, param)
    if request.truncate:
        limit = model.card.limits["max_len"]
        ids = ids[-limit:] if request.truncation_direction == "left" else ids[:limit]
    require_length(len(ids), model.card.limits, param)
    return ids


def _encode(model: LoadedModel, text: str, param: str) -> np.ndarray:
    vocabulary = model.card.vocabulary
    if MASK not in vocabulary.specials:
        return encode_text(model, text, param)
    mask = np.array([vocabulary.special_id(MASK)], dtype=np.int32)
    first, *others = text.split(MASK)
    pieces = [encode_text(model, first, param)]
    for part in others:
        start = sum(map(len, pieces)) + 1
        pieces += [mask, encode_text(model, part, param, start=start)]
    return np.concatenate(pieces)


def _require_one_length(rows: list[np.ndarray]) -> None:
    lengths = [len(row) for row in rows]
    odd = next((index for index, length in enumerate(lengths) if length != lengths[0]), None)
    if odd is not None:
        raise InvalidInput(
            f"expected texts of as many tokens as the first one, {lengths[0]}, since the states of "
            f"all of them are one array, got {lengths[odd]}; send texts of other lengths one by "
            "one, or ask /v1/embeddings for one vector each",
            f"inputs[{odd}]",
        )


def _vectors(arrays: list[np.ndarray], *, normalize: bool) -> np.ndarray:
    vectors = np.stack(arrays)
    if not normalize:
        return vectors
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # A vector of zeros has no direction, and stays what it is.
    return vectors / np.where(lengths > 0, lengths, 1)

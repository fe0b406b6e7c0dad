"""Inputs of the OpenAI schemas: a text or several, or the token ids of one or of several."""

from collections.abc import Sequence

import numpy as np

from service.errors import InvalidInput, excerpt
from service.registry import LoadedModel
from service.tasks.context import Context, encode_text, require_length

TextsOrIds = str | Sequence[str | int | Sequence[int]]


def num_symbols(given: TextsOrIds) -> int:
    """How many characters or token ids there are to read."""
    if isinstance(given, str):
        return len(given)
    return sum(1 if isinstance(item, int) else len(item) for item in given)


def encode_inputs(
    context: Context, model: LoadedModel, given: TextsOrIds, param: str, num_ids: int
) -> list[np.ndarray]:
    """The token ids of every input; those that are given as such must be below ``num_ids``.

    Raises:
        InvalidInput: if an input is not as long as the model takes or holds what it does not know,
            there are none or too many, or they are of several kinds.
        MalformedRequest: if a text holds a lone surrogate.
    """
    if isinstance(given, str):
        return [_encode(model, *named) for named in context.texts(given, param)]
    texts = [item for item in given if isinstance(item, str)]
    ids = [item for item in given if isinstance(item, int)]
    lists = [item for item in given if not isinstance(item, str | int)]
    if len(given) not in (len(texts), len(ids), len(lists)):
        raise InvalidInput(
            "expected items of one kind, strings or token ids or lists of token ids, "
            f"got {excerpt(given)}",
            param,
        )
    if ids:
        return [_checked(model, param, ids, num_ids)]
    if lists:
        context.require_count(len(lists), param)
        return [_checked(model, f"{param}[{i}]", item, num_ids) for i, item in enumerate(lists)]
    return [_encode(model, *named) for named in context.texts(texts, param)]


def _encode(model: LoadedModel, param: str, text: str) -> np.ndarray:
    tokens = encode_text(model, text, param)
    require_length(len(tokens), model.card.limits, param)
    return tokens


def _checked(model: LoadedModel, param: str, ids: Sequence[int], num_ids: int) -> np.ndarray:
    require_length(len(ids), model.card.limits, param)
    for index, token in enumerate(ids):
        if not 0 <= token < num_ids:
            raise InvalidInput(
                f"expected a token id from 0 to {num_ids - 1}, got {excerpt(token)}",
                f"{param}[{index}]",
            )
    return np.array(ids, dtype=np.int32)

"""What a right answer is: the likeliest five symbols of a mask, with their probabilities."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from benchmarks.serving.texts import Wanted

NUM_CANDIDATES = 5
# Batches of another size add up in another order, and packed parameters round otherwise.
TOLERANCE = 1e-4
# Logits may be off by a tenth where matrices are multiplied in bfloat16.
TOLERANCE_NARROW = 0.05


def fault(
    body: bytes, found: Sequence[str | int], wanted: Wanted, tolerance: float = TOLERANCE
) -> str:
    """What is wrong with the candidates at ``found`` in a body of JSON; empty where nothing is."""
    try:
        value: Any = orjson.loads(body)
        for part in found:
            value = value[part]
        scores = {candidate["token"]: candidate["score"] for candidate in value}
    except (ValueError, LookupError, TypeError) as error:
        return f"no candidates: {type(error).__name__}"
    return _difference(scores, wanted, tolerance)


def _difference(scores: Mapping[str, float], wanted: Wanted, tolerance: float) -> str:
    """Where candidates differ from the likeliest; those that are level may come in any order."""
    if len(scores) != NUM_CANDIDATES:
        return f"{len(scores)} candidates"
    if any(abs(score - wanted.get(token, -1)) > tolerance for token, score in scores.items()):
        return "another score"
    given = list(scores.values())
    if any(later > earlier + tolerance for earlier, later in itertools.pairwise(given)):
        return "another order"
    left_out = max(score for token, score in wanted.items() if token not in scores)
    return "a likelier one is missing" if left_out > given[-1] + tolerance else ""

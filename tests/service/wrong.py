"""Right requests of every call, and the kinds of values that fields do not take."""

from typing import Any

import pytest

SOURCE = "abcdefghijkl"
LONG = "x" * 100_000

GOOD = {
    "/v1/fill-mask": {"inputs": "a tim<mask>"},
    "/v1/decode": {"inputs": SOURCE},
    "/v1/latents": {"inputs": "the time machine"},
    "/v1/embeddings": {"model": "masked-lm", "input": "the time ma"},
    "/v1/completions": {"prompt": "the ", "max_tokens": 2, "seed": 1},
}
# The field that holds the texts of each call.
TEXT = dict.fromkeys(GOOD, "inputs") | {"/v1/embeddings": "input", "/v1/completions": "prompt"}
# The models that can answer it.
ABLE = {
    "/v1/fill-mask": ["masked-lm"],
    "/v1/decode": ["reversal"],
    "/v1/latents": ["perceiver"],
    "/v1/embeddings": ["masked-lm", "perceiver"],
    "/v1/completions": ["causal-lm"],
}
ONE_GOOD = {path: body[TEXT[path]] for path, body in GOOD.items()}

CODES = {
    400: ("invalid_request_error", "malformed_request"),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", "too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    422: ("invalid_request_error", "invalid_value"),
}

NOT_TEXT = [5, 1.5, True, {}, {"text": "a"}, [5], ["a", None], [["a"]], [{}], ["a", True]]
NOT_INTEGER = ["5", "", 5.0, 1.5, 1e30, True, [], [1], {}, LONG]
NOT_NUMBER = ["5", "", True, [], [1.0], {}, LONG]
NOT_BOOLEAN = ["true", "", 1, 0, [], {}, LONG]
TOO_SMALL = [0, -1, -(2**63)]
NOT_STRING = [5, 1.5, True, [], ["a"], {}]

# A field, values that it does not take, and the start of what the message says it takes.
Wrong = tuple[str, list[Any], str]


def each(table: list[Wrong]) -> Any:
    """One test for every value of the table."""
    return pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            pytest.param(field, value, message, id=f"{field} {str(value)[:30]}")
            for field, values, message in table
            for value in values
        ],
    )

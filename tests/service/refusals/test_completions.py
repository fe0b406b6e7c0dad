"""What /v1/completions refuses, and how it says so."""

import re

import pytest

from tests.service.tiny import WINDOW
from tests.service.wrong import (
    GOOD,
    LONG,
    NOT_BOOLEAN,
    NOT_INTEGER,
    NOT_NUMBER,
    NOT_STRING,
    NOT_TEXT,
    TEXT,
    TOO_SMALL,
    each,
)

PATH = "/v1/completions"

WRONG = [
    (TEXT[PATH], NOT_TEXT, "expected a string"),
    ("model", NOT_STRING, "expected a string"),
    ("max_tokens", [None, *NOT_INTEGER], "expected an integer"),
    ("max_tokens", TOO_SMALL, "expected at least 1"),
    ("max_tokens", [1025, 10**12, 2**64 - 1], "expected at most 1024"),
    ("temperature", [None, *NOT_NUMBER], "expected a number"),
    ("temperature", [-0.1, -1, -1e300], "expected at least 0"),
    ("temperature", [2.1, 3, 1e300], "expected at most 2"),
    ("top_p", [None, *NOT_NUMBER], "expected a number"),
    ("top_p", [0, -0.5], "expected more than 0"),
    ("top_p", [1.1, 2], "expected at most 1"),
    ("n", [None, *NOT_INTEGER], "expected an integer"),
    ("n", TOO_SMALL, "expected at least 1"),
    ("n", [17, 10**9], "expected at most 16"),
    ("stop", [5, True, {}, [5], [None], [["a"]]], "expected a string"),
    (
        "stop",
        ["", [""], ["a", ""], list("abcde"), [LONG] * 5],
        "expected at most 4 strings, none of them empty",
    ),
    ("seed", NOT_INTEGER, "expected an integer"),
    ("seed", [-1, -(2**63)], "expected at least 0"),
    ("seed", [2**63, 2**64 - 1], "expected less than 9.22337e+18"),
    ("echo", [None, *NOT_BOOLEAN], "expected true or false"),
    ("logprobs", NOT_INTEGER, "expected an integer"),
    ("logprobs", [-1], "expected at least 0"),
    ("logprobs", [6, 10**9], "expected at most 5"),
    ("stream", [True, None, "false", 0, 1], "expected false"),
    ("user", NOT_STRING, "expected a string"),
]


@each(WRONG)
def test_a_wrong_value_is_told_by_field_what_was_expected_and_what_came(
    refuse, field, value, message
):
    error = refuse(PATH, GOOD[PATH] | {field: value}, 422)
    assert re.sub(r"\[\d\]", "", error["param"]) == field
    assert f": {message}" in error["message"]
    assert ", got " in error["message"]


TEXTS = [
    ("a" * WINDOW, "prompt", "expected 0 to 15 symbols, got 16"),
    (["a", "a" * 8192], "prompt[1]", "expected 0 to 15 symbols, got 8192"),
]


@pytest.mark.parametrize(("value", "param", "message"), TEXTS, ids=lambda value: str(value)[:30])
def test_a_text_that_the_model_cannot_read_is_refused_by_name(refuse, value, param, message):
    error = refuse(PATH, {TEXT[PATH]: value}, 422)
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"echo": True, "logprobs": 1}, "logprobs", "expected null where echo is true"),
        ({"prompt": ["a"] * 5, "n": 16}, "n", "expected at most 64 choices over all prompts"),
    ],
    ids=str,
)
def test_completions_refuse_what_does_not_go_together(refuse, fields, param, message):
    error = refuse("/v1/completions", fields, 422)
    assert error["param"] == param
    assert message in error["message"]

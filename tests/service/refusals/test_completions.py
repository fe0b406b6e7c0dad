"""What /v1/completions refuses, and how it says so."""

import pytest

from tests.service.tiny import WINDOW
from tests.service.wrong import (
    LONG,
    NOT_BOOLEAN,
    NOT_INTEGER,
    NOT_NUMBER,
    NOT_STRING,
    TEXT,
    TOO_SMALL,
    each,
)

PATH = "/v1/completions"
STREAMED = {"stream": True}
USAGE = "stream_options.include_usage"
UNKNOWN = "stream_options.obfuscation"

WRONG = [
    (TEXT[PATH], [5, 1.5, True, {}, {"text": "a"}], "expected a string or a list"),
    (
        TEXT[PATH],
        [[None], [True], [1.5], [{}], [["a"]], [[1.5]], [[True]], [[[1]]]],
        "expected ",
    ),
    (TEXT[PATH], [[1, "a"], ["a", [1]], [1, [1]]], "expected items of one kind"),
    (TEXT[PATH], [[-1], [0, 28], [[0], [10**12]]], "expected a token id from 0 to 27"),
    (TEXT[PATH], [[], [1] * WINDOW, [[1] * 8192]], "expected "),
    ("model", NOT_STRING, "expected a string"),
    ("max_tokens", NOT_INTEGER, "expected an integer"),
    ("max_tokens", [-1, -(2**63)], "expected at least 0"),
    ("max_tokens", [1025, 10**12, 2**64 - 1], "expected at most 1024"),
    ("temperature", NOT_NUMBER, "expected a number"),
    ("temperature", [-0.1, -1, -1e300], "expected at least 0"),
    ("temperature", [2.1, 3, 1e300], "expected at most 2"),
    ("top_p", NOT_NUMBER, "expected a number"),
    ("top_p", [0, -0.5], "expected more than 0"),
    ("top_p", [1.1, 2], "expected at most 1"),
    ("n", NOT_INTEGER, "expected an integer"),
    ("n", TOO_SMALL, "expected at least 1"),
    ("n", [129, 10**9], "expected at most 128"),
    ("best_of", NOT_INTEGER, "expected an integer"),
    ("best_of", [-1, -(2**63)], "expected at least 0"),
    ("best_of", [21, 10**9], "expected at most 20"),
    ("stop", [5, True, {}, [5], [None], [["a"]]], "expected a string"),
    (
        "stop",
        ["", [""], ["a", ""], list("abcde"), [LONG] * 5],
        "expected at most 4 strings, none of them empty",
    ),
    ("stop", ["a" * 8193, ["a", "b" * 2**17]], "expected at most 8192 characters"),
    ("seed", NOT_INTEGER, "expected an integer"),
    ("seed", [2**63, 2**64 - 1], "expected less than 9.22337e+18"),
    ("echo", NOT_BOOLEAN, "expected true or false"),
    ("logprobs", NOT_INTEGER, "expected an integer"),
    ("logprobs", [-1], "expected at least 0"),
    ("logprobs", [6, 10**9], "expected at most 5"),
    ("stream", NOT_BOOLEAN, "expected true or false"),
    ("stream_options", [5, True, "include_usage", []], "expected an object"),
    ("stream_options", [{}, {"include_usage": True}], "expected null where stream is not true"),
    *(
        (penalty, [0.1, -2, 2, "0", True, False, [], {}], "expected 0 or null")
        for penalty in ("frequency_penalty", "presence_penalty")
    ),
    ("logit_bias", [{"5": -100}, {"a": "b"}, [], 0, "", True, False], "expected {} or null"),
    ("suffix", ["end", " ", 0, False, [], {}, LONG], 'expected "" or null'),
    ("user", NOT_STRING, "expected a string"),
]


@each(WRONG)
def test_a_wrong_value_is_told_by_field_what_was_expected_and_what_came(
    refuse_value, field, value, message
):
    refuse_value(PATH, field, value, message)


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
        ({"prompt": ["a"] * 5, "n": 16}, "n", "expected at most 64 choices over all prompts"),
        ({"n": 65}, "n", "expected at most 64 choices over all prompts, got 65"),
        ({"prompt": [[1], [2], [3], [4]], "best_of": 20}, "best_of", "got 80"),
        ({"n": 3, "best_of": 2}, "best_of", "expected at least n, which is 3, got 2"),
        ({"stream": True, "best_of": 2}, "best_of", "expected n, which is 1, or null"),
        (STREAMED | {"stream_options": {"obfuscation": True}}, UNKNOWN, "include_usage"),
        (STREAMED | {"stream_options": {"include_usage": None}}, USAGE, "expected true or false"),
        (STREAMED | {"stream_options": {"include_usage": 1}}, USAGE, "expected true or false"),
        (
            STREAMED | {"stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "expected false, got true",
        ),
        ({"chat": None}, "chat", "expected one of the fields"),
    ],
    ids=str,
)
def test_completions_refuse_what_does_not_go_together(refuse, fields, param, message):
    error = refuse("/v1/completions", fields, 422)
    assert error["param"] == param
    assert message in error["message"]

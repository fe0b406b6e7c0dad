"""What /v1/decode refuses, and how it says so."""

import pytest

from tests.service.wrong import (
    GOOD,
    NOT_BOOLEAN,
    NOT_INTEGER,
    NOT_STRING,
    NOT_TEXT,
    SOURCE,
    TEXT,
    TOO_SMALL,
    each,
)

PATH = "/v1/decode"

WRONG = [
    (TEXT[PATH], NOT_TEXT, "expected a string"),
    ("model", NOT_STRING, "expected a string"),
    ("attention", ["all", "true", 1, 0, [], [True]], "expected true or false or an object"),
    ("inputs", [None], "expected a string or a list"),
    ("max_new_tokens", NOT_INTEGER, "expected an integer"),
    ("max_new_tokens", TOO_SMALL, "expected at least 1"),
    ("num_beams", NOT_INTEGER, "expected an integer"),
    ("num_beams", TOO_SMALL, "expected at least 1"),
    ("num_beams", [9, 10**9], "expected at most 8"),
    ("stream", [None, *NOT_BOOLEAN], "expected true or false"),
]


@each(WRONG)
def test_a_wrong_value_is_told_by_field_what_was_expected_and_what_came(
    refuse_value, field, value, message
):
    refuse_value(PATH, field, value, message)


TEXTS = [
    ("", "inputs", "expected exactly 12 symbols, got 0"),
    (["", ""], "inputs[0]", "expected exactly 12 symbols, got 0"),
    ("abc", "inputs", "expected exactly 12 symbols, got 3"),
    ([SOURCE, SOURCE + "a"], "inputs[1]", "expected exactly 12 symbols, got 13"),
    ("stressed", "inputs", "'abcdefghijklmnop', got 's' (U+0073) at position 0"),
    ("abcdefghijkz", "inputs", "'abcdefghijklmnop', got 'z' (U+007A) at position 11"),
    ("Abcdefghijkl", "inputs", "'abcdefghijklmnop', got 'A' (U+0041) at position 0"),
    ("abcdef hijkl", "inputs", "got ' ' (U+0020) at position 6"),
    ("abcdef\x00hijkl", "inputs", "got '\\x00' (U+0000) at position 6"),
    ("abcde\U0001f642ghijkl", "inputs", "(U+1F642) at position 5"),
    ([SOURCE, "abcde\u0301fghijk"], "inputs[1]", "(U+0301) at position 5"),
]


@pytest.mark.parametrize(("value", "param", "message"), TEXTS, ids=lambda value: str(value)[:30])
def test_a_text_that_the_model_cannot_read_is_refused_by_name(refuse, value, param, message):
    error = refuse(PATH, {TEXT[PATH]: value}, 422)
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize("options", [{}, {"attention": True}, {"max_new_tokens": 1}], ids=str)
def test_a_stream_is_greedy(refuse, options):
    body = GOOD[PATH] | {"stream": True, "num_beams": 2} | options
    error = refuse(PATH, body, 422)
    assert error["param"] == "num_beams"
    assert "expected 1 where stream is true" in error["message"]
    assert error["message"].endswith("got 2")


@each([row for row in WRONG if row[0] not in ("stream", "num_beams", "attention")])
def test_a_stream_is_refused_like_any_other_request(refuse, field, value, message):
    error = refuse(PATH, GOOD[PATH] | {"stream": True, field: value}, 422)
    assert f": {message}" in error["message"]

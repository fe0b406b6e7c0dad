"""What /v1/embeddings refuses, and how it says so."""

import pytest

from tests.service.tiny import MAX_INPUT_LEN, WIDTH, WINDOW
from tests.service.wrong import LONG, NOT_INTEGER, NOT_STRING, TOO_SMALL, each

PATH = "/v1/embeddings"

WRONG = [
    ("input", [None, 5, 1.5, True, {}, {"text": "a"}], "expected a string or a list"),
    ("input", [["a", None], [1.5], [True], [{}]], "expected a string or an integer or a list"),
    ("input", [[[1.5]], [[1], ["a"]], [[[1]]], [[1, True]]], "expected an integer"),
    ("input", [["a", 1], [1, [1]], [[1], "a"], [1, 1, "a"]], "expected items of one kind, strings"),
    ("input", [["a"] * 2**17], "expected a string or at most 65536 items"),
    ("input", [[28 + 1], [-1], [0, 10**12], [-(2**63)]], "expected a token id from 0 to 28"),
    ("encoding_format", ["int8", "", 5, None, True, LONG], "expected 'float' or 'base64'"),
    ("dimensions", NOT_INTEGER, "expected an integer"),
    ("dimensions", TOO_SMALL, "expected at least 1"),
    ("dimensions", [1, WIDTH + 1, 2**40], f"expected {WIDTH}, the width of masked-lm"),
    ("user", NOT_STRING, "expected a string"),
    ("model", NOT_STRING, "expected a string"),
]


@each(WRONG)
def test_a_wrong_value_is_told_by_field_what_was_expected_and_what_came(
    refuse_value, field, value, message
):
    refuse_value(PATH, field, value, message)


@pytest.mark.parametrize(
    ("model", "value", "param", "message"),
    [
        ("masked-lm", "", "input", f"expected 1 to {WINDOW} symbols, got 0"),
        ("masked-lm", ["a", ""], "input[1]", f"expected 1 to {WINDOW} symbols, got 0"),
        ("masked-lm", "a" * (WINDOW + 1), "input", f"expected 1 to {WINDOW} symbols, got 17"),
        ("masked-lm", [3] * (WINDOW + 1), "input", f"expected 1 to {WINDOW} symbols, got 17"),
        ("masked-lm", [[3], []], "input[1]", f"expected 1 to {WINDOW} symbols, got 0"),
        ("masked-lm", [[3], [3, 29]], "input[1][1]", "expected a token id from 0 to 28, got 29"),
        ("perceiver", "a" * 129, "input", f"expected 1 to {MAX_INPUT_LEN} symbols, got 129"),
        ("perceiver", [[3]] * 65, "input", "expected 1 to 64 inputs, got 65"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_input_that_the_model_cannot_read_is_refused_by_name(
    refuse, model, value, param, message
):
    error = refuse(PATH, {"model": model, "input": value}, 422)
    assert error["param"] == param
    assert message in error["message"]


def test_where_several_models_can_do_it_one_must_be_named(refuse):
    error = refuse(PATH, {"input": "a"}, 422)
    assert error["message"] == (
        "model: expected one of ['masked-lm', 'perceiver'], as several can do this, got none"
    )

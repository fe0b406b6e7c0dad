"""What /v1/fill-mask refuses, and how it says so."""

import pytest

from tests.service.tiny import WINDOW
from tests.service.wrong import (
    GOOD,
    LONG,
    NOT_BOOLEAN,
    NOT_INTEGER,
    NOT_STRING,
    NOT_TEXT,
    TEXT,
    TOO_SMALL,
    each,
)

PATH = "/v1/fill-mask"

WRONG = [
    (TEXT[PATH], NOT_TEXT, "expected a string"),
    ("model", NOT_STRING, "expected a string"),
    ("attention", ["all", "true", 1, 0, [], [True]], "expected true or false or an object"),
    ("inputs", [None], "expected a string or a list"),
    ("top_k", NOT_INTEGER, "expected an integer"),
    ("top_k", TOO_SMALL, "expected at least 1"),
    ("targets", ["a", 5, True, {}], "expected a list"),
    ("targets", [[5], ["a", None], [["a"]], [True]], "expected a string"),
    ("targets", [[]], "expected at least 1 item"),
    ("mask_token", [None, *NOT_STRING], "expected a string"),
    ("mask_token", [""], "expected at least 1 character"),
    ("evidence", [None, *NOT_BOOLEAN], "expected true or false"),
]


@each(WRONG)
def test_a_wrong_value_is_told_by_field_what_was_expected_and_what_came(
    refuse_value, field, value, message
):
    refuse_value(PATH, field, value, message)


TEXTS = [
    ("", "inputs", "expected 1 to 64 masks '<mask>', got 0"),
    ("no mask", "inputs", "expected 1 to 64 masks '<mask>', got 0"),
    ("<MASK> < mask >", "inputs", "expected 1 to 64 masks '<mask>', got 0"),
    (["a<mask>", ""], "inputs[1]", "expected 1 to 64 masks '<mask>', got 0"),
    ([""] * 3, "inputs[0]", "expected 1 to 64 masks '<mask>', got 0"),
    ("<mask>" * 65, "inputs", "expected 1 to 64 masks '<mask>', got 65"),
    ("<mask>" * 1365, "inputs", "expected 1 to 64 masks '<mask>', got 1365"),
]


@pytest.mark.parametrize(("value", "param", "message"), TEXTS, ids=lambda value: str(value)[:30])
def test_a_text_that_the_model_cannot_read_is_refused_by_name(refuse, value, param, message):
    error = refuse(PATH, {TEXT[PATH]: value}, 422)
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"targets": ["é"]}, "targets[0]", "expected one of the symbols ' abcdef"),
        ({"targets": ["a", "ab"]}, "targets[1]", "got 'ab'"),
        ({"targets": [""]}, "targets[0]", "got ''"),
        ({"targets": ["A"]}, "targets[0]", "got 'A'"),
        ({"targets": ["<mask>"]}, "targets[0]", "got '<mask>'"),
        ({"targets": [LONG]}, "targets[0]", "(100000 characters)"),
        ({"targets": ["a", "b", "a"]}, "targets", "expected every target once, got repeated ones"),
        ({"targets": ["a"] * 100_000}, "targets", "expected every target once"),
        ({"mask_token": "_"}, "inputs", "expected 1 to 64 masks '_', got 0"),
        ({"mask_token": LONG}, "inputs", "(100000 characters), got 0"),
        (
            {"inputs": "<mask>" + "a" * WINDOW, "attention": True},
            "attention",
            f"expected texts of at most {WINDOW} tokens where attention is asked for, got 17 in "
            "inputs[0]",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_fill_mask_refuses_what_it_cannot_show(refuse, fields, param, message):
    error = refuse("/v1/fill-mask", GOOD["/v1/fill-mask"] | fields, 422)
    assert error["param"] == param
    assert message in error["message"]


def test_more_windows_than_the_queue_ever_holds_are_too_large(refuse):
    text = ("<mask>" + "a" * 10) * 40
    error = refuse("/v1/fill-mask", {"inputs": [text] * 20}, 413)
    assert error["message"] == (
        "inputs: expected masks and sides that take at most 512 passes, got 800; send fewer texts "
        "or masks"
    )

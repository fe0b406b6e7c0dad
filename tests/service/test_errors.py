import pytest

from service import errors
from service.answers import TABLE
from service.errors import InvalidInput, TriwireError, excerpt


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (0.5, "0.5"),
        ("", "''"),
        ("a'b\n\x00", '"a\'b\\n\\x00"'),
        ("é", "'é'"),
        ("\ud800", "'\\ud800'"),
        ([], "[]"),
        ([True, None, "x"], "[true, null, 'x']"),
        ([1, 2, 3, 4], "[1, 2, 3, ...]"),
        ({}, "{}"),
        ({"secret": 1}, "{...}"),
        ("x" * 41, f"'{'x' * 40}'... (41 characters)"),
    ],
)
def test_a_value_is_shown_as_json_has_it(value, shown):
    assert excerpt(value) == shown


def test_a_deep_value_is_cut_and_not_followed_to_its_end():
    assert excerpt(nested(50_000)) == "[[...]]"


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, [["x" * 10**5] * 10**4] * 3, {"x" * 10**5: 1}, [{"x": nested(500)}] * 10**5],
    ids=["string", "lists", "object", "mixed"],
)
def test_what_is_shown_is_short_however_large_the_value(value):
    assert len(excerpt(value)) < 300


def test_an_error_names_its_field_in_the_message():
    assert str(InvalidInput("expected 1, got 2", "top_k")) == "top_k: expected 1, got 2"
    assert InvalidInput("expected 1, got 2", "top_k").param == "top_k"
    assert str(InvalidInput("expected 1, got 2")) == "expected 1, got 2"


def test_every_error_has_a_line_in_the_table_and_in_the_drawn_tree():
    kinds = set(TriwireError.__subclasses__())
    assert kinds == set(TABLE)
    for kind in kinds:
        assert f"+- {kind.__name__} " in errors.__doc__


def test_codes_tell_errors_apart():
    codes = [code for _, _, code in TABLE.values()]
    assert len(set(codes)) == len(codes)

"""Attention maps that cannot be given, in every call that gives some."""

import pytest

from tests.service.wrong import GOOD, LONG


@pytest.mark.parametrize("path", ["/v1/fill-mask", "/v1/decode"])
@pytest.mark.parametrize(
    ("attention", "param", "message"),
    [
        ({"layer": 0}, "layer", "expected one of the fields layers, heads, encoding"),
        ({LONG: 0}, "x" * 40, "expected one of the fields layers, heads, encoding"),
        ({"layers": "none"}, "layers", "expected 'all' or a list, got 'none'"),
        ({"layers": "mean"}, "layers", "expected 'all' or a list, got 'mean'"),
        ({"layers": 0}, "layers", "expected 'all' or a list, got 0"),
        ({"layers": None}, "layers", "expected 'all' or a list, got null"),
        ({"layers": ["0"]}, "layers[0]", "expected an integer, got '0'"),
        ({"layers": [0, True]}, "layers[1]", "expected an integer, got true"),
        ({"layers": [0.0]}, "layers[0]", "expected an integer, got 0.0"),
        ({"layers": [-1]}, "layers[0]", "expected at least 0, got -1"),
        ({"layers": [7]}, "layers", "expected different numbers from 0 to"),
        ({"layers": [0, 0]}, "layers", "expected different numbers from 0 to"),
        ({"layers": []}, "layers", "expected different numbers from 0 to"),
        ({"layers": [2**64 - 1]}, "layers", "expected different numbers from 0 to"),
        ({"layers": list(range(20_000))}, "layers", "expected different numbers from 0 to"),
        ({"heads": "max"}, "heads", "expected 'all' or 'mean' or a list, got 'max'"),
        ({"heads": [2]}, "heads", "expected different numbers from 0 to 1, got [2]"),
        ({"heads": [1, 1]}, "heads", "expected different numbers from 0 to 1, got [1, 1]"),
        ({"heads": []}, "heads", "expected different numbers from 0 to 1, got []"),
        ({"heads": [-1]}, "heads[0]", "expected at least 0, got -1"),
        ({"heads": [[0]]}, "heads[0]", "expected an integer, got [0]"),
        ({"encoding": "npy"}, "encoding", "expected 'float' or 'base64', got 'npy'"),
        ({"encoding": None}, "encoding", "expected 'float' or 'base64', got null"),
        ({"encoding": LONG}, "encoding", "(100000 characters)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_attention_that_cannot_be_given_is_refused_by_name(refuse, path, attention, param, message):
    error = refuse(path, GOOD[path] | {"attention": attention}, 422)
    assert error["param"] == f"attention.{param}"
    assert message in error["message"]

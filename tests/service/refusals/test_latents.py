"""What /v1/latents refuses, and how it says so."""

import base64
import io

import numpy as np
import pytest

from tests.service.tiny import MAX_INPUT_LEN, WIDTH
from tests.service.wrong import (
    GOOD,
    LONG,
    NOT_BOOLEAN,
    NOT_STRING,
    NOT_TEXT,
    TEXT,
    each,
)

PATH = "/v1/latents"

WRONG = [
    (TEXT[PATH], NOT_TEXT, "expected a string"),
    ("model", NOT_STRING, "expected a string"),
    ("features", ["AAAA", 5, True], "expected an object or a list"),
    ("encoding_format", ["npy", "", 5, None, True, LONG], "expected 'float' or"),
    ("reconstruct", [None, *NOT_BOOLEAN], "expected true or false"),
]


@each(WRONG)
def test_a_wrong_value_is_told_by_field_what_was_expected_and_what_came(
    refuse_value, field, value, message
):
    refuse_value(PATH, field, value, message, good={} if field == "features" else GOOD[PATH])


TEXTS = [
    ("", "inputs", "expected 1 to 128 symbols, got 0"),
    (["a", ""], "inputs[1]", "expected 1 to 128 symbols, got 0"),
    ("a" * 129, "inputs", "expected 1 to 128 symbols, got 129"),
]


@pytest.mark.parametrize(("value", "param", "message"), TEXTS, ids=lambda value: str(value)[:30])
def test_a_text_that_the_model_cannot_read_is_refused_by_name(refuse, value, param, message):
    error = refuse(PATH, {TEXT[PATH]: value}, 422)
    assert error["param"] == param
    assert message in error["message"]


def matrix(rows=2, width=WIDTH, value=0.5):
    return [[value] * width for _ in range(rows)]


def with_value(value):
    return [[0.5] * WIDTH, [0.5] * (WIDTH - 1) + [value]]


def packed(data=b"", shape=(2, WIDTH), **fields):
    return {"data": base64.b64encode(data).decode(), "shape": list(shape)} | fields


FEATURES = {
    "no rows": ([], "features", f"expected N x {WIDTH} numbers, got an empty list"),
    "flat": ([1.0] * WIDTH, "features", "as a list of lists, got [1.0, 1.0, 1.0, ...]"),
    "an empty row": ([[]], "features[0]", f"expected {WIDTH} numbers, got 0"),
    "an empty matrix": ([[[]]], "features[0][0]", f"expected {WIDTH} numbers, got 0"),
    "too narrow": (matrix(width=WIDTH - 1), "features[0]", f"{WIDTH} numbers, got {WIDTH - 1}"),
    "too wide": (matrix(width=10_000), "features[0]", f"expected {WIDTH} numbers, got 10000"),
    "ragged": ([*matrix(), [1.0]], "features[2]", f"expected {WIDTH} numbers, got 1"),
    "mixed depth": ([*matrix(), 1.0], "features", "as a list of lists, got [[...], [...], 1.0]"),
    "deeper later": ([*matrix(), matrix()], "features[2]", f"expected {WIDTH} numbers, got 2"),
    "deeper first": ([matrix(), [1.0] * WIDTH], "features[1]", "as a list of lists, got [1.0,"),
    "too deep": ([[matrix()]], "features[0][0]", f"expected {WIDTH} numbers, got 2"),
    "a string": (with_value("1.0"), f"features[1][{WIDTH - 1}]", "a number, got '1.0'"),
    "a long string": (with_value(LONG), f"features[1][{WIDTH - 1}]", "(100000 characters)"),
    "a boolean": (with_value(True), f"features[1][{WIDTH - 1}]", "a number, got true"),
    "null": (with_value(None), f"features[1][{WIDTH - 1}]", "a number, got null"),
    "a list": (with_value([1.0]), f"features[1][{WIDTH - 1}]", "a number, got [1.0]"),
    "an object": (with_value({}), f"features[1][{WIDTH - 1}]", "a number, got {}"),
    "a string for a row": ([matrix()[0], "abcdefgh"], "features", "as a list of lists, got [["),
    "only strings": (["a"], "features", "as a list of lists, got ['a']"),
    "only null": ([None], "features", "as a list of lists, got [null]"),
    "a huge number": (with_value(1e300), f"features[1][{WIDTH - 1}]", "1e+06, got 1e+300"),
    "beyond float32": (with_value(-4e38), f"features[1][{WIDTH - 1}]", "1e+06, got -4e+38"),
    "too large": (with_value(1.1e6), f"features[1][{WIDTH - 1}]", "-1e+06 to 1e+06, got 1.1e+06"),
    "a huge integer": (with_value(2**64 - 1), f"features[1][{WIDTH - 1}]", "got 1.84467e+19"),
    "too long": (matrix(MAX_INPUT_LEN + 1), "features", f"expected 1 to {MAX_INPUT_LEN} symbols"),
    "one too long": (
        [matrix(), matrix(MAX_INPUT_LEN + 1)],
        "features[1]",
        f"expected 1 to {MAX_INPUT_LEN} symbols, got {MAX_INPUT_LEN + 1}",
    ),
    "too many": ([matrix(1)] * 65, "features", "expected 1 to 64 inputs, got 65"),
    "no base64": (packed() | {"data": "?!"}, "features.data", "expected base64"),
    "base64 with spaces": (packed() | {"data": "AA AA"}, "features.data", "expected base64"),
    "base64 of other letters": (packed() | {"data": "ÄÖÜ="}, "features.data", "expected base64"),
    "base64 cut short": (packed() | {"data": "AAAAA"}, "features.data", "expected base64"),
    "base64 of nothing": (packed(), "features.data", "expected 64 bytes for float32 of shape"),
    "base64 too short": (packed(bytes(63)), "features.data", "of shape [2, 8], got 63"),
    "base64 too long": (packed(bytes(68)), "features.data", "of shape [2, 8], got 68"),
    "base64 of the other type": (
        packed(bytes(64), dtype="float64"),
        "features.data",
        "expected 128 bytes for float64 of shape [2, 8], got 64",
    ),
    "base64 of 100 kB": (packed(bytes(75_000)), "features.data", "got 75000"),
    "data that is no string": (packed() | {"data": 5}, "features.data", "expected a string, got 5"),
    "no data": ({"shape": [2, WIDTH]}, "features.data", "expected a value, got none"),
    "no shape": ({"data": ""}, "features.shape", "expected a value, got none"),
    "another dtype": (
        packed(bytes(64), dtype="int8"),
        "features.dtype",
        "expected 'float32' or 'float64', got 'int8'",
    ),
    "another field": (packed(bytes(64), order="F"), "features.order", "expected one of the fields"),
    "shape of one axis": (packed(bytes(64), [16]), "features.shape", "at least 2 item"),
    "shape of four axes": (packed(bytes(64), [1, 1, 2, 8]), "features.shape", "at most 3 items"),
    "shape of many axes": (packed(bytes(64), [1] * 10_000), "features.shape", "at most 3 items"),
    "shape of no axes": (packed(bytes(64), []), "features.shape", "at least 2 item"),
    "shape that is a number": (packed() | {"shape": 2}, "features.shape", "expected a list, got 2"),
    "shape of strings": (packed(bytes(64), ["2", 8]), "features.shape[0]", "an integer, got '2'"),
    "shape of floats": (packed(bytes(64), [2.0, 8]), "features.shape[0]", "an integer, got 2.0"),
    "a negative size": (packed(bytes(64), [-2, -8]), "features.shape[0]", "at least 1, got -2"),
    "a size of -1": (packed(bytes(64), [-1, WIDTH]), "features.shape[0]", "at least 1, got -1"),
    "a size of zero": (packed(b"", [0, WIDTH]), "features.shape[0]", "at least 1, got 0"),
    "zero and huge": (packed(b"", [0, 2**62, WIDTH]), "features.shape[0]", "at least 1, got 0"),
    "a width of zero": (packed(b"", [2, 0]), "features.shape[1]", "at least 1, got 0"),
    "a product of 2**62": (packed(bytes(64), [2**31, 2**31]), "features.data", "got 64"),
    "a product of 2**64": (packed(bytes(64), [2**32, 2**32]), "features.data", "got 64"),
    "a product beyond": (packed(bytes(64), [2**63, 2**63, 2**63]), "features.data", "got 64"),
    "another width": (packed(bytes(64), [4, 4]), "features", f"N x {WIDTH} numbers, got shape"),
    "stacked with another width": (packed(bytes(64), [2, 2, 4]), "features[0]", "got shape [2, 4]"),
    "too many stacked": (
        packed(bytes(65 * WIDTH * 4), [65, 1, WIDTH]),
        "features",
        "expected 1 to 64 inputs, got 65",
    ),
    "too long in base64": (
        packed(bytes((MAX_INPUT_LEN + 1) * WIDTH * 4), [MAX_INPUT_LEN + 1, WIDTH]),
        "features",
        f"expected 1 to {MAX_INPUT_LEN} symbols",
    ),
    "NaN in base64": (
        packed(b"\x00\x00\xc0\x7f" * 16),
        "features[0][0]",
        "expected a number from -1e+06 to 1e+06, got nan",
    ),
    "infinity in base64": (
        packed(bytes(60) + b"\x00\x00\x80\x7f"),
        f"features[1][{WIDTH - 1}]",
        "expected a number from -1e+06 to 1e+06, got inf",
    ),
}


@pytest.mark.parametrize(("features", "param", "message"), FEATURES.values(), ids=FEATURES.keys())
def test_features_that_are_no_matrix_of_numbers_are_refused_by_place(
    refuse, features, param, message
):
    error = refuse("/v1/latents", {"features": features}, 422)
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize("depth", [4, 500, 1000])
def test_features_of_any_depth_are_refused(refuse, depth):
    body = b'{"features": ' + b"[" * depth + b"]" * depth + b"}"
    error = refuse("/v1/latents", body, 422)
    assert error["message"] == f"features[0][0]: expected {WIDTH} numbers, got {int(depth > 3)}"


@pytest.mark.parametrize("body", [{}, {"inputs": None}, {"inputs": None, "features": None}])
def test_latents_of_nothing_are_refused(refuse, body):
    error = refuse("/v1/latents", body, 422)
    assert error["message"] == "inputs: expected either inputs or features, got neither"


def test_latents_of_both_kinds_at_once_are_refused(refuse):
    error = refuse("/v1/latents", {"inputs": "a", "features": matrix()}, 422)
    assert error["message"] == "inputs: expected either inputs or features, got both"


def test_features_are_not_read_back(refuse):
    error = refuse(PATH, {"features": matrix(), "reconstruct": True}, 422)
    assert error["message"] == (
        "reconstruct: expected false where features are sent, which are not read back, got true"
    )


def test_text_is_not_read_back_into_an_array(client):
    body = {"inputs": "a", "reconstruct": True}
    answer = client.post(PATH, json=body, headers={"Accept": NPY})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "reconstruct"
    assert f"where {NPY} is accepted, which holds no text" in answer.json()["error"]["message"]


NPY = "application/x-npy"
ARRAYS = {
    "no array": (b"hello", "features", "expected a .npy file of version 1.0, 2.0 or 3.0, got 5"),
    "nothing": (b"", "features", "expected a .npy file of version 1.0, 2.0 or 3.0, got 0"),
    "objects": (np.array([[None] * WIDTH]), "features.dtype", "expected float32, as"),
    "float64": (np.zeros((2, WIDTH)), "features.dtype", "got '<f8'"),
    "one axis": (np.zeros(WIDTH, np.float32), "features.shape", f"got [{WIDTH}]"),
    "another width": (np.zeros((2, 4), np.float32), "features", "got shape [2, 4]"),
    "stacked of another width": (
        np.zeros((2, 2, 4), np.float32),
        "features[0]",
        "got shape [2, 4]",
    ),
    "too long": (
        np.zeros((MAX_INPUT_LEN + 1, WIDTH), np.float32),
        "features",
        f"expected 1 to {MAX_INPUT_LEN} symbols, got {MAX_INPUT_LEN + 1}",
    ),
    "too many": (np.zeros((65, 1, WIDTH), np.float32), "features", "1 to 64 inputs, got 65"),
    "NaN": (np.full((2, WIDTH), np.nan, np.float32), "features[0][0]", "got nan"),
    "too large": (np.full((1, 2, WIDTH), 2e6, np.float32), "features[0][0][0]", "got 2e+06"),
}


@pytest.mark.parametrize(("array", "param", "message"), ARRAYS.values(), ids=ARRAYS.keys())
def test_a_body_that_is_no_array_of_such_numbers_is_refused_by_place(refuse, array, param, message):
    if not isinstance(array, bytes):
        file = io.BytesIO()
        np.save(file, array)
        array = file.getvalue()
    error = refuse(PATH, array, 422, content_type=NPY)
    assert error["param"] == param
    assert message in error["message"]


def test_an_array_over_the_limit_of_a_body_is_too_large(refuse):
    error = refuse(PATH, b" " * (2**20 + 1), 413, content_type=NPY)
    assert "expected a body of at most 1048576 bytes, got " in error["message"]


@pytest.mark.parametrize(
    ("query", "status", "param", "message"),
    [
        ("model=nothing", 404, "model", "expected one of ["),
        ("model=reversal", 422, "model", "expected a model that can do this"),
        ("encoding_format=npy", 422, "encoding_format", "expected 'float' or 'base64', got 'npy'"),
        ("reconstruct=true", 422, "reconstruct", "expected one of the fields model, encoding_fo"),
        ("inputs=a", 422, "inputs", "expected one of the fields model, encoding_format"),
    ],
)
def test_parameters_that_do_not_go_with_an_array_are_refused(refuse, query, status, param, message):
    file = io.BytesIO()
    np.save(file, np.zeros((2, WIDTH), np.float32))
    error = refuse(f"{PATH}?{query}", file.getvalue(), status, content_type=NPY)
    assert error["param"] == param
    assert message in error["message"]

"""Wrong requests by the dozen: each gets its documented status and a message that helps.

After every one of them the service answers a right request as if nothing had been.
"""

import base64
import re

import orjson
import pytest

from tests.service.tiny import MAX_INPUT_LEN, WIDTH, WINDOW

SOURCE = "abcdefghijkl"
LONG = "x" * 100_000

GOOD = {
    "/v1/fill-mask": {"inputs": "a tim<mask>"},
    "/v1/decode": {"inputs": SOURCE},
    "/v1/latents": {"inputs": "the time machine"},
    "/v1/completions": {"prompt": "the ", "max_tokens": 2, "seed": 1},
}
# The field that holds the texts of each call.
TEXT = dict.fromkeys(GOOD, "inputs") | {"/v1/completions": "prompt"}

CODES = {
    400: ("invalid_request_error", "malformed_request"),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", "too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    422: ("invalid_request_error", "invalid_value"),
}


@pytest.fixture(scope="module")
def good_answers(client):
    def comparable(answer):
        return {key: value for key, value in answer.items() if key not in ("id", "created")}

    def answers(path):
        answer = client.post(path, json=GOOD[path])
        assert answer.status_code == 200
        return comparable(answer.json())

    first = {path: answers(path) for path in GOOD}
    return lambda path: answers(path) == first[path]


@pytest.fixture
def refuse(client, good_answers):
    """The error that a body is answered with, once it is found to be a proper one."""

    def refuse(path, body, status, content_type="application/json"):
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": content_type} if content_type else {}
        answer = client.post(path, content=content, headers=headers)
        assert answer.status_code == status, answer.text[:500]
        assert answer.headers["content-type"] == "application/json"
        assert list(answer.json()) == ["error"]
        error = answer.json()["error"]
        assert list(error) == ["message", "type", "param", "code", "request_id"]
        assert (error["type"], error["code"]) == CODES[status]
        assert error["request_id"] == answer.headers["x-request-id"]
        assert 0 < len(error["message"]) < 500
        assert "server-timing" in answer.headers
        if error["param"]:
            assert error["message"].startswith(error["param"] + ": ")
            assert len(error["param"]) < 100
        assert good_answers(path)
        return error

    return refuse


MALFORMED = {
    "empty": b"",
    "blank": b" \n",
    "word": b"hello",
    "single quotes": b"{'inputs': 'a'}",
    "unquoted name": b"{inputs: 'a'}",
    "cut short": b'{"inputs": "a',
    "trailing comma": b'{"inputs": "a",}',
    "two documents": b'{"inputs": "a"}{}',
    "form": b"inputs=a",
    "comment": b'{"inputs": "a"} // x',
    "NaN": b'{"inputs": "a", "top_k": NaN}',
    "Infinity": b'{"inputs": "a", "top_k": Infinity}',
    "-Infinity": b'{"features": [[-Infinity]]}',
    "1e999": b'{"inputs": "a", "temperature": 1e999}',
    "-1e999": b'{"features": [[-1e999]]}',
    "hexadecimal": b'{"inputs": "a", "top_k": 0x10}',
    "leading zero": b'{"inputs": "a", "top_k": 01}',
    "plus": b'{"inputs": "a", "top_k": +1}',
    "10,000 brackets": b'{"inputs": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "10,000 open brackets": b"[" * 10_000,
    "10,000 objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "escaped high surrogate": b'{"inputs": "a\\ud800"}',
    "escaped low surrogate": b'{"inputs": "\\udfffa"}',
    "surrogates the wrong way round": b'{"inputs": "\\udc00\\ud800"}',
    "raw surrogate": b'{"inputs": "\xed\xa0\x80"}',
    "surrogate in a name": b'{"\\ud800": "a"}',
    "broken utf-8": b'{"inputs": "\xff"}',
    "cut utf-8": b'{"inputs": "\xc3"}',
    "overlong utf-8": b'{"inputs": "\xc0\xaf"}',
    "latin-1": '{"inputs": "é"}'.encode("latin-1"),
    "utf-16": '{"inputs": "a"}'.encode("utf-16"),
    "raw NUL": b'{"inputs": "\x00"}',
    "raw newline": b'{"inputs": "a\nb"}',
    "NUL after the end": b'{"inputs": "a"}\x00',
    "byte order mark": b'\xef\xbb\xbf{"inputs": "a"}',
    "gzip": bytes.fromhex("1f8b0800000000000003ab5652cacc2b282d2956b252505250ac05"),
    "100 kB of nonsense": b"x" * 100_000,
}


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_json_is_malformed(refuse, path, body):
    error = refuse(path, body, 400)
    assert error["param"] is None
    assert error["message"].startswith("expected a body of JSON in UTF-8: ")


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    "kind",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "application/x-npy", "json", "*"],
)
def test_a_body_of_another_type_is_refused(refuse, path, kind):
    error = refuse(path, orjson.dumps(GOOD[path]), 415, content_type=kind)
    assert error["param"] == "Content-Type"
    assert "expected application/json, got " in error["message"]


@pytest.mark.parametrize("path", GOOD)
def test_a_body_over_the_limit_is_too_large(refuse, path):
    body = orjson.dumps(GOOD[path])
    error = refuse(path, body + b" " * 2**20, 413)
    assert error["message"].startswith("expected a body of at most 1048576 bytes, got ")


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"[]", "[]"),
        (b'[{"inputs": "a"}]', "[{...}]"),
        (b'"a"', "'a'"),
        (b"5", "5"),
        (b"1.5", "1.5"),
        (b"true", "true"),
        (b"null", "null"),
        (orjson.dumps(LONG), "(100000 characters)"),
        (b"[" * 1000 + b"]" * 1000, "[[...]]"),
    ],
    ids=str,
)
def test_a_body_that_is_no_object_is_told_what_came(refuse, path, body, got):
    error = refuse(path, body, 422)
    assert error["param"] is None
    assert error["message"].startswith("expected an object, got ")
    assert error["message"].endswith(got)


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("name", ["input", "Inputs", "", "__class__", "inputs ", LONG, "é\n\x00"])
def test_an_unknown_field_is_named_with_those_there_are(refuse, path, name):
    error = refuse(path, GOOD[path] | {name: 1}, 422)
    assert error["param"] == name[:40] or (not name and error["param"] is None)
    assert (
        f"expected one of the fields model, {'prompt' if 'comp' in path else 'inputs'}"
        in (error["message"])
    )


NOT_TEXT = [5, 1.5, True, {}, {"text": "a"}, [5], ["a", None], [["a"]], [{}], ["a", True]]
NOT_INTEGER = ["5", "", 5.0, 1.5, 1e30, True, [], [1], {}, LONG]
NOT_NUMBER = ["5", "", True, [], [1.0], {}, LONG]
NOT_BOOLEAN = ["true", "", 1, 0, [], {}, LONG]
TOO_SMALL = [0, -1, -(2**63)]
NOT_STRING = [5, 1.5, True, [], ["a"], {}]

# Path, field, values that it does not take, and the start of what the message says it takes.
WRONG = [
    *((path, TEXT[path], NOT_TEXT, "expected a string") for path in GOOD),
    ("/v1/fill-mask", "inputs", [None], "expected a string or a list"),
    ("/v1/decode", "inputs", [None], "expected a string or a list"),
    *((path, "model", NOT_STRING, "expected a string") for path in GOOD),
    ("/v1/fill-mask", "top_k", NOT_INTEGER, "expected an integer"),
    ("/v1/fill-mask", "top_k", TOO_SMALL, "expected at least 1"),
    ("/v1/fill-mask", "targets", ["a", 5, True, {}], "expected a list"),
    ("/v1/fill-mask", "targets", [[5], ["a", None], [["a"]], [True]], "expected a string"),
    ("/v1/fill-mask", "targets", [[]], "expected at least 1 item"),
    ("/v1/fill-mask", "mask_token", [None, *NOT_STRING], "expected a string"),
    ("/v1/fill-mask", "mask_token", [""], "expected at least 1 character"),
    ("/v1/fill-mask", "evidence", [True, None, "false", 0, 1, {}], "expected false"),
    *(
        (
            path,
            "attention",
            ["all", "true", 1, 0, [], [True]],
            "expected true or false or an object",
        )
        for path in ("/v1/fill-mask", "/v1/decode")
    ),
    ("/v1/decode", "max_new_tokens", NOT_INTEGER, "expected an integer"),
    ("/v1/decode", "max_new_tokens", TOO_SMALL, "expected at least 1"),
    ("/v1/decode", "stream", [True, None, "false", 0, 1], "expected false"),
    ("/v1/latents", "features", ["AAAA", 5, True], "expected an object or a list"),
    ("/v1/latents", "encoding_format", ["npy", "", 5, None, True, LONG], "expected 'float' or"),
    ("/v1/latents", "reconstruct", [True, None, "false", 0, 1], "expected false"),
    ("/v1/completions", "max_tokens", [None, *NOT_INTEGER], "expected an integer"),
    ("/v1/completions", "max_tokens", TOO_SMALL, "expected at least 1"),
    ("/v1/completions", "max_tokens", [1025, 10**12, 2**64 - 1], "expected at most 1024"),
    ("/v1/completions", "temperature", [None, *NOT_NUMBER], "expected a number"),
    ("/v1/completions", "temperature", [-0.1, -1, -1e300], "expected at least 0"),
    ("/v1/completions", "temperature", [2.1, 3, 1e300], "expected at most 2"),
    ("/v1/completions", "top_p", [None, *NOT_NUMBER], "expected a number"),
    ("/v1/completions", "top_p", [0, -0.5], "expected more than 0"),
    ("/v1/completions", "top_p", [1.1, 2], "expected at most 1"),
    ("/v1/completions", "n", [None, *NOT_INTEGER], "expected an integer"),
    ("/v1/completions", "n", TOO_SMALL, "expected at least 1"),
    ("/v1/completions", "n", [17, 10**9], "expected at most 16"),
    ("/v1/completions", "stop", [5, True, {}, [5], [None], [["a"]]], "expected a string"),
    (
        "/v1/completions",
        "stop",
        ["", [""], ["a", ""], list("abcde"), [LONG] * 5],
        "expected at most 4 strings, none of them empty",
    ),
    ("/v1/completions", "seed", NOT_INTEGER, "expected an integer"),
    ("/v1/completions", "seed", [-1, -(2**63)], "expected at least 0"),
    ("/v1/completions", "seed", [2**63, 2**64 - 1], "expected less than 9.22337e+18"),
    ("/v1/completions", "echo", [None, *NOT_BOOLEAN], "expected true or false"),
    ("/v1/completions", "logprobs", NOT_INTEGER, "expected an integer"),
    ("/v1/completions", "logprobs", [-1], "expected at least 0"),
    ("/v1/completions", "logprobs", [6, 10**9], "expected at most 5"),
    ("/v1/completions", "stream", [True, None, "false", 0, 1], "expected false"),
    ("/v1/completions", "user", NOT_STRING, "expected a string"),
]


@pytest.mark.parametrize(
    ("path", "field", "value", "message"),
    [
        pytest.param(path, field, value, message, id=f"{path[4:]} {field} {str(value)[:30]}")
        for path, field, values, message in WRONG
        for value in values
    ],
)
def test_a_wrong_value_is_told_by_field_what_was_expected_and_what_came(
    refuse, path, field, value, message
):
    good = {} if field == "features" else GOOD[path]
    error = refuse(path, good | {field: value}, 422)
    assert re.sub(r"\[\d\]", "", error["param"]) == field
    assert f": {message}" in error["message"]
    assert ", got " in error["message"]


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


@pytest.mark.parametrize("path", ["/v1/fill-mask", "/v1/decode"])
def test_inputs_must_be_there(refuse, path):
    for body in ({}, {"model": None}):
        assert refuse(path, body, 422)["message"] == "inputs: expected a value, got none"


@pytest.mark.parametrize("path", GOOD)
def test_an_unknown_model_is_not_found_by_name(refuse, path):
    for name in ("nothing", "", "../..", "a\x00b", LONG):
        error = refuse(path, GOOD[path] | {"model": name}, 404)
        assert error["param"] == "model"
        listed = "expected one of ['causal-lm', 'masked-lm', 'perceiver', 'reversal'], got "
        assert listed in error["message"]


@pytest.mark.parametrize("path", GOOD)
def test_a_model_that_cannot_do_the_task_is_refused(refuse, path):
    able = {"fill-mask": "masked-lm", "decode": "reversal", "latents": "perceiver"}
    able = able.get(path[4:], "causal-lm")
    for name in {"causal-lm", "masked-lm", "perceiver", "reversal"} - {able}:
        error = refuse(path, GOOD[path] | {"model": name}, 422)
        assert error["param"] == "model"
        assert f"can do this (['{able}']), got '{name}'" in error["message"]


ONE_GOOD = {path: body[TEXT[path]] for path, body in GOOD.items()}


@pytest.mark.parametrize("path", GOOD)
def test_no_texts_and_too_many_are_refused(refuse, path):
    field = TEXT[path]
    error = refuse(path, {field: []}, 422)
    assert error["message"] == f"{field}: expected 1 to 64 inputs, got 0"
    error = refuse(path, {field: [ONE_GOOD[path]] * 65}, 422)
    assert "expected " in error["message"]
    assert error["message"].endswith("got 65")
    error = refuse(path, {field: [""] * 100_000}, 422)
    assert error["message"].endswith("got 100000")


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("in_list", [False, True])
def test_an_over_long_text_is_refused_by_name_and_length(refuse, path, in_list):
    field = TEXT[path]
    value = [ONE_GOOD[path], LONG] if in_list else LONG
    error = refuse(path, {field: value}, 422)
    assert error["param"] == (f"{field}[1]" if in_list else field)
    assert "expected at most 8192 characters, got 100000" in error["message"]


TEXTS = [
    ("/v1/fill-mask", "", "inputs", "expected 1 to 64 masks '<mask>', got 0"),
    ("/v1/fill-mask", "no mask", "inputs", "expected 1 to 64 masks '<mask>', got 0"),
    ("/v1/fill-mask", "<MASK> < mask >", "inputs", "expected 1 to 64 masks '<mask>', got 0"),
    ("/v1/fill-mask", ["a<mask>", ""], "inputs[1]", "expected 1 to 64 masks '<mask>', got 0"),
    ("/v1/fill-mask", [""] * 3, "inputs[0]", "expected 1 to 64 masks '<mask>', got 0"),
    ("/v1/fill-mask", "<mask>" * 65, "inputs", "expected 1 to 64 masks '<mask>', got 65"),
    ("/v1/fill-mask", "<mask>" * 1365, "inputs", "expected 1 to 64 masks '<mask>', got 1365"),
    ("/v1/decode", "", "inputs", "expected exactly 12 symbols, got 0"),
    ("/v1/decode", ["", ""], "inputs[0]", "expected exactly 12 symbols, got 0"),
    ("/v1/decode", "abc", "inputs", "expected exactly 12 symbols, got 3"),
    ("/v1/decode", [SOURCE, SOURCE + "a"], "inputs[1]", "expected exactly 12 symbols, got 13"),
    ("/v1/decode", "stressed", "inputs", "'abcdefghijklmnop', got 's' (U+0073) at position 0"),
    ("/v1/decode", "abcdefghijkz", "inputs", "'abcdefghijklmnop', got 'z' (U+007A) at position 11"),
    ("/v1/decode", "Abcdefghijkl", "inputs", "'abcdefghijklmnop', got 'A' (U+0041) at position 0"),
    ("/v1/decode", "abcdef hijkl", "inputs", "got ' ' (U+0020) at position 6"),
    ("/v1/decode", "abcdef\x00hijkl", "inputs", "got '\\x00' (U+0000) at position 6"),
    ("/v1/decode", "abcde\U0001f642ghijkl", "inputs", "(U+1F642) at position 5"),
    ("/v1/decode", [SOURCE, "abcde\u0301fghijk"], "inputs[1]", "(U+0301) at position 5"),
    ("/v1/latents", "", "inputs", "expected 1 to 128 symbols, got 0"),
    ("/v1/latents", ["a", ""], "inputs[1]", "expected 1 to 128 symbols, got 0"),
    ("/v1/latents", "a" * 129, "inputs", "expected 1 to 128 symbols, got 129"),
    ("/v1/completions", "a" * WINDOW, "prompt", "expected 0 to 15 symbols, got 16"),
    ("/v1/completions", ["a", "a" * 8192], "prompt[1]", "expected 0 to 15 symbols, got 8192"),
]


@pytest.mark.parametrize(
    ("path", "value", "param", "message"), TEXTS, ids=lambda value: str(value)[:30]
)
def test_a_text_that_the_model_cannot_read_is_refused_by_name(refuse, path, value, param, message):
    error = refuse(path, {TEXT[path]: value}, 422)
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
    assert error["message"] == "expected at most 512 rows a request, got 800"


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


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("value", [10**30, -(10**30), 10**4000], ids=["1e30", "-1e30", "1e4000"])
def test_integers_that_no_machine_holds_are_refused(refuse, path, value):
    field = {"fill-mask": "top_k", "decode": "max_new_tokens", "completions": "seed"}
    field = field.get(path[4:], "features")
    body = orjson.dumps(GOOD[path])[:-1] + b', "%s": ' % field.encode()
    content = body.replace(b'"inputs"', b'"model"') if field == "features" else body
    status = 400 if value == 10**4000 else 422
    refuse(path, content + str(value).encode() + b"}", status)


@pytest.mark.parametrize("path", GOOD)
def test_of_a_field_given_twice_the_last_one_counts_as_json_readers_have_it(client, path):
    body = b'{"model": "nothing", ' + orjson.dumps(GOOD[path])[1:-1] + b', "model": null}'
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


@pytest.mark.parametrize("text", ["\u0000", "a\u0000b", "\u202e\ufeff", "\U0010ffff", "é" * 8192])
def test_odd_characters_are_text_like_any_other_where_the_model_normalises(client, text):
    for path, body in {
        "/v1/fill-mask": {"inputs": f"{text}<mask>"[-8192:]},
        "/v1/latents": {"inputs": text},
        "/v1/completions": {"prompt": text, "max_tokens": 1},
    }.items():
        assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_another_method_is_not_allowed(client, path, method):
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    if method != "HEAD":
        assert answer.json()["error"]["message"] == f"{method} '{path}': Method Not Allowed"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v2/models",
        "/v1/fill_mask",
        "/V1/decode",
        *(f"{path}/" for path in GOOD),
        "/v1/models/",
        "/livez/",
        "/readyz/",
        "//v1/decode",
        "/v1/decode/../../etc/passwd",
        "/%00",
        "/%ff",
        "/" + "x" * 5000,
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_not_found(client, path, method):
    answer = client.request(method, path, json=GOOD["/v1/decode"] if method == "POST" else None)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "no_such_call"
    assert len(error["message"]) < 200


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "\u00e9", "", "x" * 5000])
def test_a_senseless_host_is_no_fault_of_ours(client, host):
    headers = {"Host": host.encode("latin-1")}
    assert client.get("/nothing", headers=headers).status_code == 404
    assert client.get("/v1/decode", headers=headers).status_code == 405
    assert client.post("/v1/decode", json=[], headers=headers).status_code == 422
    assert client.post("/v1/decode", json={"inputs": SOURCE}, headers=headers).status_code == 200

"""What /models/{name} refuses, and how it says so: bodies, values and limits.

Values that the client of the protocol can send are refused in tests/service/hugging_face.
"""

import orjson
import pytest

from tests.service.refusals.test_bodies import MALFORMED
from tests.service.wrong import LONG, NOT_BOOLEAN, NOT_INTEGER, NOT_NUMBER, NOT_STRING, SOURCE

GOOD = {
    "/models/masked-lm": {"inputs": "a tim<mask>", "parameters": {}},
    "/models/perceiver": {"inputs": "the time"},
    "/models/causal-lm": {"inputs": "the ", "parameters": {"max_new_tokens": 2}},
    "/models/reversal": {"inputs": SOURCE},
    "/models/masked-lm/fill-mask": {"inputs": "a tim<mask>"},
    "/models/masked-lm/feature-extraction": {"inputs": "the time"},
    "/models/masked-lm/sentence-similarity": {
        "inputs": {"source_sentence": "a", "sentences": ["b"]}
    },
    "/models/causal-lm/text-generation": {"inputs": "the ", "parameters": {"max_new_tokens": 2}},
    "/models/reversal/translation": {"inputs": SOURCE},
    "/models/reversal/summarization": {"inputs": SOURCE},
}
ONE_TEXT = [path for path in GOOD if path.partition("/models/")[2][:1] in "cr"]
SEVERAL_TEXTS = [path for path in GOOD if path not in ONE_TEXT and "similarity" not in path]


@pytest.fixture(scope="module")
def refuse(client):
    """The message that a body is answered with; a right one is answered as well as before."""
    first = {path: client.post(path, json=body).json() for path, body in GOOD.items()}

    def refuse(path, body, status, content_type="application/json"):
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        answer = client.post(path, content=content, headers={"Content-Type": content_type})
        assert answer.status_code == status, answer.text[:500]
        assert list(answer.json()) == ["error", "error_type"]
        assert answer.json()["error_type"] == "validation"
        assert 0 < len(answer.json()["error"]) < 600
        assert answer.headers["x-request-id"]
        assert client.post(path, json=GOOD[path]).json() == first[path]
        return answer.json()["error"]

    return refuse


@pytest.mark.parametrize("path", GOOD)
def test_a_right_body_is_answered(client, path):
    assert client.post(path, json=GOOD[path]).status_code == 200


@pytest.mark.parametrize("path", ["/models/masked-lm", "/models/reversal/translation"])
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_json_is_malformed(refuse, path, body):
    assert refuse(path, body, 400).startswith("expected a body of JSON in UTF-8: ")


@pytest.mark.parametrize("path", GOOD)
def test_a_body_of_another_type_is_refused(refuse, path):
    message = refuse(path, GOOD[path], 415, content_type="text/plain")
    assert message == "Content-Type: expected application/json, got 'text/plain'"


@pytest.mark.parametrize("path", GOOD)
def test_a_body_over_the_limit_is_too_large(refuse, path):
    message = refuse(path, orjson.dumps(GOOD[path]) + b" " * 2**20, 413)
    assert message.startswith("expected a body of at most 1048576 bytes, got ")


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"[]", "[]"),
        (b'"a"', "'a'"),
        (b"5", "5"),
        (b"true", "true"),
        (b"null", "null"),
        (b"[" * 1000 + b"]" * 1000, "[[...]]"),
    ],
    ids=str,
)
def test_a_body_that_is_no_object_is_told_what_came(refuse, path, body, got):
    assert refuse(path, body, 422) == f"expected an object, got {got}"


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("name", ["text", "model", "Inputs", "__class__", LONG, "é\n\x00"])
def test_an_unknown_field_is_named_with_those_there_are(refuse, path, name):
    message = refuse(path, GOOD[path] | {name: 1}, 422)
    assert message.startswith(f"{name[:40]}: expected one of the fields inputs, ")


@pytest.mark.parametrize("path", [path for path in GOOD if "parameters" in GOOD[path]])
def test_an_unknown_parameter_is_named_with_those_there_are(refuse, path):
    message = refuse(path, GOOD[path] | {"parameters": {"topk": 1}}, 422)
    assert message.startswith("parameters.topk: expected one of the fields ")


@pytest.mark.parametrize("path", GOOD)
def test_inputs_must_be_there(refuse, path):
    body = {name: value for name, value in GOOD[path].items() if name != "inputs"}
    assert refuse(path, body, 422) == "inputs: expected a value, got none"


@pytest.mark.parametrize("path", ONE_TEXT)
def test_one_text_a_call_is_written(refuse, path):
    message = refuse(path, GOOD[path] | {"inputs": [SOURCE, SOURCE]}, 422)
    assert message.startswith("inputs: expected a string, got [")


@pytest.mark.parametrize("path", SEVERAL_TEXTS)
def test_no_texts_and_too_many_are_refused(refuse, path):
    for inputs, count in (([], 0), (["a<mask>"] * 65, 65), ([""] * 60_000, 60_000)):
        message = refuse(path, GOOD[path] | {"inputs": inputs}, 422)
        assert message == f"inputs: expected 1 to 64 inputs, got {count}"


@pytest.mark.parametrize("path", [*ONE_TEXT, *SEVERAL_TEXTS])
def test_an_over_long_text_is_refused_by_name_and_length(refuse, path):
    message = refuse(path, GOOD[path] | {"inputs": LONG}, 422)
    assert message == "inputs: expected at most 8192 characters, got 100000"


WRONG = [
    ("/models/masked-lm", "top_k", NOT_INTEGER, "expected an integer"),
    ("/models/masked-lm", "targets", [5, True, {}], "expected a string or a list"),
    ("/models/masked-lm", "targets", [[5], ["a", None]], "expected a string"),
    ("/models/causal-lm", "max_new_tokens", NOT_INTEGER, "expected an integer"),
    ("/models/causal-lm", "temperature", NOT_NUMBER, "expected a number"),
    ("/models/causal-lm", "top_p", NOT_NUMBER, "expected a number"),
    ("/models/causal-lm", "do_sample", NOT_BOOLEAN, "expected true or false"),
    ("/models/causal-lm", "details", NOT_BOOLEAN, "expected true or false"),
    ("/models/causal-lm", "seed", [-1, 2**63, "5"], "expected "),
    ("/models/causal-lm", "stop", ["a", 5], "expected a list"),
    ("/models/causal-lm", "stop", [[5], ["a", None]], "expected a string"),
    ("/models/causal-lm", "watermark", [True, 0, "false"], "expected null or false, as "),
    ("/models/causal-lm", "frequency_penalty", [False, 0.5, ""], "expected null or 0, as "),
    ("/models/causal-lm", "repetition_penalty", [True, 1.1], "expected null or 1, as "),
    ("/models/causal-lm", "num_beams", [2], "expected null or 1 for a decoder, which causal-lm is"),
    ("/models/reversal/translation", "src_lang", NOT_STRING, "expected null, as "),
    ("/models/reversal/translation", "generate_parameters", ["a", 5, []], "expected an object"),
]


@pytest.mark.parametrize(
    ("path", "field", "value", "message"),
    [
        pytest.param(path, field, value, message, id=f"{field} {str(value)[:30]}")
        for path, field, values, message in WRONG
        for value in values
    ],
)
def test_a_wrong_parameter_is_told_by_name_what_was_expected_and_what_came(
    refuse, path, field, value, message
):
    told = refuse(path, {"inputs": SOURCE, "parameters": {field: value}}, 422)
    assert told.startswith(f"parameters.{field}")
    assert f": {message}" in told
    assert ", got " in told


def test_a_stop_is_given_by_one_name(refuse):
    body = {"inputs": "the ", "parameters": {"stop": ["a"], "stop_sequences": ["b"]}}
    message = refuse("/models/causal-lm", body, 422)
    assert message == "parameters.stop_sequences: expected null where stop is given, got a list"


def test_beams_are_not_streamed(refuse):
    body = {"inputs": SOURCE, "parameters": {"num_beams": 2}, "stream": True}
    message = refuse("/models/reversal", body, 422)
    assert message.startswith("parameters.num_beams: expected 1 where stream is true, ")


def test_the_likeliest_of_several_is_not_streamed(refuse):
    body = {"inputs": "the ", "parameters": {"best_of": 2, "do_sample": True}, "stream": True}
    message = refuse("/models/causal-lm", body, 422)
    assert message == "parameters.best_of: expected null or 1 where stream is true, got 2"

"""What /v2 refuses, and how it says so: always by the name of the tensor."""

import gzip
from dataclasses import replace

import numpy as np
import orjson
import pytest

from tests.service.tiny import MAX_INPUT_LEN, WIDTH, WINDOW
from tests.service.wrong import LONG, SOURCE

KIND = "application/json"
TEXT = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a<mask>"]}
TOKENS = {"name": "tokens", "shape": [1, 2], "datatype": "INT32", "data": [3, 4]}
FEATURES = {"name": "features", "shape": [1, 1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}
GOOD = {
    "masked-lm": TEXT,
    "reversal": TEXT | {"data": [SOURCE]},
    "causal-lm": TEXT | {"data": ["the "]},
    "perceiver": TEXT | {"data": ["the time"]},
}


@pytest.fixture
def refuse(client):
    """The message that a request is answered with, once it is found to be a proper one."""

    def refuse(body, status=422, model="masked-lm", path="infer", **headers):
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = client.post(
            f"/v2/models/{model}/{path}",
            content=content,
            headers={"Content-Type": KIND, **headers},
        )
        assert answer.status_code == status, answer.text[:500]
        assert answer.headers["content-type"] == "application/json"
        assert "content-encoding" not in answer.headers
        assert list(answer.json()) == ["error"]
        message = answer.json()["error"]
        assert 0 < len(message) < 500
        assert "expected " in message
        good = {"inputs": [GOOD["masked-lm"]]}
        assert client.post("/v2/models/masked-lm/infer", json=good).status_code == 200
        return message

    return refuse


def without(tensor, name):
    return {key: value for key, value in tensor.items() if key != name}


WHOLE = [
    ([], "expected an object, got []"),
    ({}, "inputs: expected a value, got none"),
    ({"inputs": []}, "inputs: expected at least 1 item(s), got []"),
    ({"inputs": TEXT}, "inputs: expected a list, got {...}"),
    ({"inputs": ["a"]}, "inputs[0]: expected an object, got 'a'"),
    ({"inputs": [TEXT], "text": 1}, "text: expected one of the fields id, parameters, inputs, out"),
    ({"inputs": [TEXT], "id": 5}, "id: expected a string, got 5"),
    ({"inputs": [TEXT], "outputs": "filled"}, "outputs: expected a list, got 'filled'"),
    ({"inputs": [TEXT], "outputs": [{"name": 5}]}, "outputs[0].name: expected a string, got 5"),
    (
        {"inputs": [TEXT], "outputs": [{"name": "filled"}, {"name": "latents"}]},
        "outputs[1].name: expected one of filled, normalized, num_masks, positions, entropy, "
        "candidates, candidate_ids, scores, attention, embeddings where text is sent, got 'lat",
    ),
    (
        {"inputs": [TEXT], "outputs": [{"name": "filled"}, {"name": "filled"}]},
        "outputs[1].name: expected every name once, got filled again",
    ),
    (
        {"inputs": [TEXT], "outputs": [{"name": "filled", "parameters": {"classification": 3}}]},
        "outputs[0].parameters.classification: expected one of the fields binary_data",
    ),
    (
        {"inputs": [TEXT], "outputs": [{"name": "embeddings"}, {"name": "filled"}]},
        "outputs: expected embeddings by itself, as it is of text without masks, "
        "got embeddings, filled",
    ),
    ({"inputs": [TEXT, TEXT]}, "inputs[1].name: expected every name once, got text again"),
    ({"inputs": [TEXT, TOKENS]}, "inputs: expected text, or tokens (with or without lengths), got"),
    ({"inputs": [TEXT | {"name": LONG}]}, "(100000 characters)"),
    ({"inputs": [FEATURES]}, "inputs[0].name: expected one of text, tokens, lengths, got 'feature"),
    (
        {"inputs": [TEXT | {"parameters": {"shared_memory_region": "r"}}]},
        "inputs[0].parameters.shared_memory_region: expected one of the fields binary_data_size",
    ),
    (
        {"inputs": [TOKENS], "outputs": [{"name": "filled"}]},
        "outputs[0].name: expected one of embeddings where tokens (with or without lengths) is "
        "sent, got 'filled'",
    ),
]


@pytest.mark.parametrize(("body", "message"), WHOLE, ids=lambda value: str(value)[:40])
def test_a_request_that_does_not_fit_is_told_what_would(refuse, body, message):
    assert message in refuse(body)


TENSORS = [
    ({"datatype": "FP32"}, "text.datatype: expected BYTES, got 'FP32'"),
    ({"datatype": "string"}, "text.datatype: expected BYTES, got 'string'"),
    ({"datatype": None}, "inputs[0].datatype: expected a string, got null"),
    ({"shape": []}, "text.shape: expected [-1], where -1 is any size from 1 to 2147483647, got []"),
    ({"shape": [-1]}, "text.shape: expected [-1], where -1 is any size from 1"),
    ({"shape": [0], "data": []}, "text.shape: expected [-1], where -1 is any size from 1"),
    ({"shape": [1, 1]}, "text.shape: expected [-1], where -1 is any size from 1"),
    ({"shape": [2**31]}, "text.shape: expected [-1], where -1 is any size from 1"),
    ({"shape": [1.0]}, "inputs[0].shape[0]: expected an integer, got 1.0"),
    ({"shape": [1] * 9}, "inputs[0].shape: expected at most 8 items, got ["),
    ({"shape": 1}, "inputs[0].shape: expected a list, got 1"),
    ({"shape": [2**31 - 1]}, "text.data: expected 2147483647 values for the shape [2147483647]"),
    ({"data": "a<mask>"}, "inputs[0].data: expected a list, got 'a<mask>'"),
    ({"data": [5]}, "text.data[0]: expected a string, got 5"),
    ({"data": [["a<mask>", "b"]]}, "text.data[0]: expected a string, got ['a<mask>', 'b']"),
    ({"data": None}, "text.data: expected values, or a binary_data_size, got neither"),
    ({"data": ["a"]}, "text[0]: expected 1 to 64 masks '<mask>', got 0"),
    ({"data": ["a<mask>", "b"], "shape": [2]}, "text[1]: expected 1 to 64 masks '<mask>', got 0"),
    ({"data": ["<mask>"] * 65, "shape": [65]}, "text: expected 1 to 64 inputs, got 65"),
    ({"data": [LONG]}, "text[0]: expected at most 8192 characters, got 100000"),
    (
        {"parameters": {"binary_data_size": -1}},
        "inputs[0].parameters.binary_data_size: expected at least 0, got -1",
    ),
    ({"parameters": {"binary_data_size": 4}}, "text.data: expected no data beside a binary_data_s"),
]


@pytest.mark.parametrize(("change", "message"), TENSORS, ids=lambda value: str(value)[:40])
def test_a_wrong_tensor_is_told_by_its_name(refuse, change, message):
    assert message in refuse({"inputs": [TEXT | change]})


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        ("reversal", [TEXT | {"data": ["abc!"]}], "text[0]: "),
        ("reversal", [TEXT | {"data": ["abc"]}], "text[0]: expected exactly 12 symbols, got 3"),
        ("causal-lm", [TEXT | {"data": ["a" * WINDOW]}], "text[0]: expected 0 to 15 symbols, got"),
        ("perceiver", [TEXT | {"data": [""]}], f"text[0]: expected 1 to {MAX_INPUT_LEN} symbols"),
        (
            "masked-lm",
            [TOKENS | {"data": [3, 99]}],
            "tokens[0][1]: expected a token id from 0 to 28",
        ),
        (
            "masked-lm",
            [TOKENS | {"data": [3, -1]}],
            "tokens[0][1]: expected a token id from 0 to 28",
        ),
        (
            "masked-lm",
            [TOKENS | {"shape": [1, 17], "data": [3] * 17}],
            "tokens[0]: expected 1 to 16 symbols, got 17",
        ),
        (
            "masked-lm",
            [TOKENS | {"shape": [65, 1], "data": [3] * 65}],
            "tokens: expected 1 to 64 inputs, got 65",
        ),
        (
            "masked-lm",
            [TOKENS, {"name": "lengths", "shape": [1], "datatype": "INT32", "data": [3]}],
            "lengths[0]: expected a length from 0 to 2, got 3",
        ),
        (
            "masked-lm",
            [TOKENS, {"name": "lengths", "shape": [1], "datatype": "INT64", "data": [-(2**63)]}],
            "lengths[0]: expected a length from 0 to 2, got -9223372036854775808",
        ),
        (
            "masked-lm",
            [TOKENS, {"name": "lengths", "shape": [1], "datatype": "INT32", "data": [0]}],
            "tokens[0]: expected 1 to 16 symbols, got 0",
        ),
        (
            "perceiver",
            [FEATURES, {"name": "lengths", "shape": [2], "datatype": "INT32", "data": [1, 1]}],
            "lengths.shape: expected [1], a length for each row of features, got [2]",
        ),
        (
            "perceiver",
            [FEATURES | {"shape": [1, 1, WIDTH + 1], "data": [0.5] * (WIDTH + 1)}],
            f"features.shape: expected [-1, -1, {WIDTH}]",
        ),
        (
            "perceiver",
            [FEATURES | {"data": [0.5] * (WIDTH - 1) + [1e300]}],
            f"features[0][0][{WIDTH - 1}]: expected a number from -1e+06 to 1e+06, got 1e+300",
        ),
        (
            "perceiver",
            [FEATURES | {"shape": [1, 129, WIDTH], "data": [0.5] * 129 * WIDTH}],
            f"features[0]: expected 1 to {MAX_INPUT_LEN} symbols, got 129",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_model_cannot_read_is_told_by_the_name_of_the_tensor(refuse, model, inputs, message):
    assert refuse({"inputs": inputs}, model=model).startswith(message)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38], ids=str)
def test_numbers_that_are_not_finite_are_refused_as_bytes_too(refuse, value):
    values = np.zeros(WIDTH, np.float32)
    values[2] = value
    tensor = without(FEATURES, "data") | {"parameters": {"binary_data_size": 4 * WIDTH}}
    head = orjson.dumps({"inputs": [tensor]})
    message = refuse(
        head + values.tobytes(),
        model="perceiver",
        Inference_Header_Content_Length=str(len(head)),
    )
    assert message.startswith("features[0][0][2]: expected a number from -1e+06 to 1e+06, got ")


@pytest.mark.parametrize(
    ("model", "parameters", "message"),
    [
        ("masked-lm", {"top_k": "5"}, "parameters.top_k: expected an integer, got '5'"),
        ("masked-lm", {"top_k": 0}, "parameters.top_k: expected at least 1, got 0"),
        ("masked-lm", {"mask_token": ""}, "parameters.mask_token: expected at least 1 character"),
        (
            "masked-lm",
            {"max_tokens": 5},
            "parameters.max_tokens: expected one of the parameters to",
        ),
        ("masked-lm", {LONG: 5}, "expected one of the parameters top_k, mask_token, binary_data_o"),
        ("masked-lm", {"sequence_id": 7}, "parameters.sequence_id: expected one of the parameters"),
        ("masked-lm", {"priority": 1}, "parameters.priority: expected 0, as all requests have the"),
        ("masked-lm", {"timeout": 1.5}, "parameters.timeout: expected an integer of microseconds"),
        ("masked-lm", {"timeout": -1}, "parameters.timeout: expected an integer of microseconds"),
        ("masked-lm", {"timeout": True}, "parameters.timeout: expected an integer of microseconds"),
        ("masked-lm", {"binary_data_output": 1}, "parameters.binary_data_output: expected true or"),
        ("reversal", {"num_beams": 9}, "parameters.num_beams: expected at most 8, got 9"),
        ("reversal", {"attention": True}, "parameters.attention: expected one of the parameters m"),
        ("causal-lm", {"temperature": "hot"}, "parameters.temperature: expected a number, got 'ho"),
        ("causal-lm", {"max_tokens": 2000}, "parameters.max_tokens: expected at most 1024, got 2"),
        ("causal-lm", {"n": 129}, "parameters.n: expected at most 128, got 129"),
        ("causal-lm", {"stop": ""}, "parameters.stop: expected at most 4 strings, none of them em"),
        ("perceiver", {"reconstruct": True}, "parameters.reconstruct: expected one of the paramet"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_parameter_is_told_by_its_name(refuse, model, parameters, message):
    body = {"inputs": [GOOD[model]], "parameters": parameters}
    assert message in refuse(body, model=model)


def test_embeddings_have_no_parameters(refuse):
    body = {"inputs": [TOKENS], "parameters": {"top_k": 3}}
    assert refuse(body) == "parameters.top_k: expected none for embeddings, got some"


def test_beams_are_given_only_where_some_are_searched(refuse):
    body = {"inputs": [GOOD["reversal"]], "outputs": [{"name": "beams"}]}
    message = refuse(body, model="reversal")
    assert message == "parameters.num_beams: expected more than 1 where beams are asked for, got 1"


def test_a_timeout_of_the_request_ends_it(client):
    good = {"inputs": [GOOD["reversal"]]}
    answer = client.post("/v2/models/reversal/infer", json=good | {"parameters": {"timeout": 1}})
    assert answer.status_code == 504
    assert answer.json() == {"error": "the answer was not ready in time"}
    for timeout in (0, 10**9, 10**18):
        body = good | {"parameters": {"timeout": timeout, "priority": 0}}
        assert client.post("/v2/models/reversal/infer", json=body).status_code == 200


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"", {}, 400, "expected a body of JSON in UTF-8: "),
        (b"hello", {}, 400, "expected a body of JSON in UTF-8: "),
        (b'{"inputs": [NaN]}', {}, 400, "expected a body of JSON in UTF-8: "),
        (b'{"inputs": ["\\ud800"]}', {}, 400, "expected a body of JSON in UTF-8: "),
        (b"[" * 10_000, {}, 400, "expected a body of JSON in UTF-8: "),
        (b"{}", {"Inference_Header_Content_Length": "3"}, 400, "from 0 to 2, the length of the bo"),
        (b"{}", {"Inference_Header_Content_Length": "x"}, 400, "from 0 to 2, the length of the bo"),
        (b"{}a", {"Inference_Header_Content_Length": "1"}, 400, "expected a body of JSON in UTF-8"),
        (b"{}a", {"Inference_Header_Content_Length": "2"}, 422, "inputs: expected a value, got no"),
        (b"\xff", {"Inference_Header_Content_Length": "0"}, 422, "text[0]: expected text in UTF-8"),
        (b"a", {"Inference_Header_Content_Length": "0"}, 422, "text[0]: expected 1 to 64 masks"),
        (b"{}", {"Content_Encoding": "gzip"}, 400, "expected a body compressed by gzip, got anoth"),
        (b"{}", {"Content_Encoding": "br"}, 415, "expected gzip, deflate or identity, got 'br'"),
        (
            gzip.compress(bytes(2**21), mtime=0),
            {"Content_Encoding": "gzip"},
            413,
            "once decompressed, got m",
        ),
        (b" " * (2**20 + 1), {}, 413, "expected a body of at most 1048576 bytes, got "),
        (b"{}", {"Content_Type": "text/plain"}, 415, "expected application/json or application/oc"),
        (b"a=b", {"Content_Type": "application/x-www-form-urlencoded"}, 415, "application/octet-s"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_that_cannot_be_read_is_told_why(refuse, body, headers, status, message):
    assert message in refuse(body, status, **headers)


@pytest.mark.parametrize(
    ("model", "path", "message"),
    [
        (
            "nothing",
            "infer",
            "model: expected one of ['causal-lm', 'masked-lm', 'perceiver', 'reve",
        ),
        (
            LONG[:5000],
            "infer",
            "model: expected one of ['causal-lm', 'masked-lm', 'perceiver', 're",
        ),
        ("masked-lm", "versions/2/infer", "version: expected one of the versions [1], got 2"),
        ("masked-lm", "versions/x/infer", "version: expected one of the versions [1], got 'x'"),
    ],
    ids=lambda value: value[:30],
)
def test_a_model_or_version_that_is_not_there_is_not_found(refuse, model, path, message):
    assert message in refuse({"inputs": [TEXT]}, 404, model=model, path=path)


def test_maps_that_are_too_large_once_padded_are_refused(client, refuse, monkeypatch):
    context = client.app.state.context
    settings = context.settings.model_copy(update={"max_attention_values": 2000})
    monkeypatch.setitem(client.app.state._state, "context", replace(context, settings=settings))
    tensor = TEXT | {"shape": [64], "data": ["<mask>" + "a" * 15] + ["<mask>"] * 63}
    message = refuse({"inputs": [tensor], "outputs": [{"name": "attention"}]}, 413)
    assert message.startswith("attention: expected at most 2000 attention weights, with what fills")
    assert "got 65536; send fewer texts" in message


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["models/masked-lm/infer", "repository/index"])
def test_another_method_is_not_allowed(client, method, path):
    answer = client.request(method, f"/v2/{path}")
    assert answer.status_code == 405
    assert answer.json() == {"error": f"{method} '/v2/{path}': Method Not Allowed"}


@pytest.mark.parametrize("call", ["load", "unload"])
def test_models_are_not_loaded_by_this_protocol_and_told_how_they_are(client, call):
    answer = client.post(f"/v2/repository/models/masked-lm/{call}", json={})
    assert answer.status_code == 403
    assert "loaded anew by SIGHUP or by POST /v1/models/NAME/reload" in answer.json()["error"]


@pytest.mark.parametrize("body", [b"[]", b'{"ready": 1}', b'{"ready": "true"}', b'{"name": "x"}'])
def test_the_index_takes_one_field_and_no_other(client, body):
    answer = client.post("/v2/repository/index", content=body)
    assert answer.status_code == 422
    assert "expected " in answer.json()["error"]
    assert client.post("/v2/repository/index", content=b"{").status_code == 400

"""NVIDIA's client for the Open Inference Protocol, unmodified, against the service."""

import asyncio
import warnings

import numpy as np
import pytest

from tests.service import tiny
from tests.service.tiny import NUM_LATENTS, WIDTH

# Rows that share a batch with others can differ in the last bits.
TOLERANCE = {"atol": 1e-5}
TEXTS = {
    "masked-lm": ["the t<mask>me<mask>", "é<mask>"],
    "reversal": ["abcdefghijkl", "ponmlkjihgfe"],
    "causal-lm": ["the time", "ti"],
    "perceiver": ["the time machine", "ab"],
}
MODELS = sorted(TEXTS)
# What is the same each time it is asked for.
PARAMETERS = {"causal-lm": {"temperature": 0, "max_tokens": 5}}


@pytest.fixture(scope="module")
def triton():
    """The client's module; what it warns of is none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tritonclient import http
    return http


@pytest.fixture(scope="module")
def address(live):
    return f"{live.base_url.host}:{live.base_url.port}"


@pytest.fixture(scope="module")
def server(triton, address):
    with triton.InferenceServerClient(address) as client:
        yield client


@pytest.fixture(scope="module")
def texts_of(triton):
    """The input "text" for a model."""

    def texts_of(model, *, binary=True):
        texts = np.array(TEXTS[model], dtype=object)
        tensor = triton.InferInput("text", list(texts.shape), "BYTES")
        return tensor.set_data_from_numpy(texts, binary_data=binary)

    return texts_of


def as_arrays(result):
    """All outputs by name; a client gives bytes or text for BYTES, as they came."""
    outputs = {}
    for output in result.get_response()["outputs"]:
        array = result.as_numpy(output["name"])
        if output["datatype"] == "BYTES":
            texts = [x.decode() if isinstance(x, bytes) else x for x in array.ravel()]
            array = np.array(texts, dtype=object).reshape(array.shape)
        outputs[output["name"]] = array
    return outputs


def require_alike(outputs, expected):
    assert list(outputs) == list(expected)
    for name, array in outputs.items():
        assert array.shape == expected[name].shape
        if array.dtype == object or array.dtype.kind == "i":
            np.testing.assert_array_equal(array, expected[name])
        else:
            np.testing.assert_allclose(array, expected[name], **TOLERANCE)


def test_the_server_lives_is_ready_and_tells_what_it_can_do(server):
    assert server.is_server_live()
    assert server.is_server_ready()
    told = server.get_server_metadata()
    assert told["name"] == "triwire"
    assert "binary_tensor_data" in told["extensions"]


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_ready_and_tells_its_tensors(server, model):
    assert server.is_model_ready(model)
    assert server.is_model_ready(model, "1")
    assert not server.is_model_ready(model, "2")
    told = server.get_model_metadata(model)
    assert told == server.get_model_metadata(model, "1")
    card = next(card for card in tiny.cards() if card.name == model)
    assert told["platform"] == f"triwire_{card.wiring.replace('-', '_')}"
    assert (told["name"], told["versions"]) == (model, ["1"])
    assert told["inputs"][0]["name"] == "text"
    assert (told["inputs"][0]["datatype"], told["inputs"][0]["shape"]) == ("BYTES", [-1])
    config = server.get_model_config(model, "1")
    assert [own["name"] for own in config["output"]] == [own["name"] for own in told["outputs"]]


def test_the_index_lists_all_models(server):
    ready = [
        {"name": name, "version": "1", "state": "READY", "reason": ""} for name in sorted(MODELS)
    ]
    assert server.get_model_repository_index() == ready


@pytest.mark.parametrize("model", MODELS)
def test_tensors_go_both_ways_as_bytes_and_as_json(triton, server, texts_of, model):
    """However they are sent, compressed or not, the answer is the same."""
    parameters = PARAMETERS.get(model, {})
    first = server.infer(model, [texts_of(model)], parameters=parameters, request_id="first")
    told = first.get_response()
    assert (told["model_name"], told["model_version"], told["id"]) == (model, "1", "first")
    assert all("binary_data_size" in own["parameters"] for own in told["outputs"])
    expected = as_arrays(first)
    for binary in (True, False):
        outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in expected]
        for coding in (None, "gzip", "deflate"):
            result = server.infer(
                model,
                [texts_of(model, binary=not binary)],
                model_version="1",
                outputs=outputs,
                parameters=parameters,
                request_compression_algorithm=coding,
                response_compression_algorithm=coding,
            )
            assert "id" not in result.get_response()
            require_alike(as_arrays(result), expected)


def test_some_outputs_come_as_bytes_and_others_as_json(triton, server, texts_of):
    outputs = [
        triton.InferRequestedOutput("scores", binary_data=True),
        triton.InferRequestedOutput("filled", binary_data=False),
        triton.InferRequestedOutput("attention", binary_data=True),
    ]
    result = server.infer("masked-lm", [texts_of("masked-lm")], outputs=outputs)
    filled = result.get_output("filled")
    assert filled["data"] == result.as_numpy("filled").tolist()
    assert result.as_numpy("scores").shape == (2, 2, 5)
    np.testing.assert_allclose(result.as_numpy("attention")[0].sum(axis=-1), 1, **TOLERANCE)


def test_a_large_answer_is_compressed_where_the_client_asks_for_it(live):
    body = {"inputs": [{"name": "text", "shape": [64], "datatype": "BYTES", "data": ["ab"] * 64}]}
    for coding in ("gzip", "deflate"):
        answer = live.post(
            "/v2/models/perceiver/infer", json=body, headers={"Accept-Encoding": coding}
        )
        assert answer.headers["content-encoding"] == coding
        assert answer.json()["outputs"][0]["shape"] == [64, NUM_LATENTS, WIDTH]


def test_features_and_tokens_of_either_width_are_read(triton, live, server):
    features = np.random.default_rng(0).normal(size=(2, 4, WIDTH)).astype(np.float32)
    native = live.post("/v1/latents", json={"features": features.tolist()}).json()["results"]
    for binary in (True, False):
        tensor = triton.InferInput("features", [2, 4, WIDTH], "FP32")
        tensor.set_data_from_numpy(features, binary_data=binary)
        latents = server.infer("perceiver", [tensor]).as_numpy("latents")
        np.testing.assert_allclose(latents, [own["latents"] for own in native], **TOLERANCE)
    ids = [[3, 4, 5], [6, 7, 0]]
    body = {"model": "masked-lm", "input": [[3, 4, 5], [6, 7]], "encoding_format": "float"}
    native = live.post("/v1/embeddings", json=body).json()["data"]
    for datatype, dtype in (("INT32", np.int32), ("INT64", np.int64)):
        for binary in (True, False):
            tokens = triton.InferInput("tokens", [2, 3], datatype)
            tokens.set_data_from_numpy(np.array(ids, dtype), binary_data=binary)
            lengths = triton.InferInput("lengths", [2], datatype)
            lengths.set_data_from_numpy(np.array([3, 2], dtype), binary_data=binary)
            vectors = server.infer("masked-lm", [tokens, lengths]).as_numpy("embeddings")
            told = [own["embedding"] for own in native]
            np.testing.assert_allclose(vectors, told, **TOLERANCE)


def test_a_body_that_is_one_text_is_answered_in_raw_tensors(triton, live, server):
    answer = live.post(
        "/v2/models/reversal/infer",
        content=TEXTS["reversal"][0],
        headers={"Inference-Header-Content-Length": "0"},
    )
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers["inference-header-content-length"])
    result = triton.InferResult.from_response_body(answer.content, header_length=length)
    native = live.post("/v1/decode", json={"inputs": TEXTS["reversal"][0]}).json()["results"][0]
    assert as_arrays(result)["output"].tolist() == [native["output"]]


@pytest.mark.parametrize("model", MODELS)
def test_requests_that_wait_for_each_other_are_answered_alike(triton, address, texts_of, model):
    parameters = PARAMETERS.get(model, {})
    with triton.InferenceServerClient(address, concurrency=4) as server:
        pending = [
            server.async_infer(model, [texts_of(model)], parameters=parameters) for _ in range(4)
        ]
        first, *others = [as_arrays(one.get_result()) for one in pending]
    for other in others:
        require_alike(other, first)


def test_the_asynchronous_client_is_answered_too(triton, address, server, texts_of):
    from tritonclient.http import aio

    async def ask():
        async with aio.InferenceServerClient(address) as client:
            assert await client.is_server_ready()
            assert await client.get_model_metadata("perceiver") == told
            assert len(await client.get_model_repository_index()) == len(MODELS)
            return await client.infer("masked-lm", [texts_of("masked-lm")], request_id="a")

    told = server.get_model_metadata("perceiver")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = asyncio.run(ask())
    assert result.get_response()["id"] == "a"
    expected = as_arrays(server.infer("masked-lm", [texts_of("masked-lm")]))
    require_alike(as_arrays(result), expected)


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        (lambda s, _: s.get_model_metadata("nothing"), 404, "model: expected one of ['causal-lm'"),
        (
            lambda s, _: s.get_model_config("perceiver", "9"),
            404,
            "version: expected one of the ver",
        ),
        (
            lambda s, x: s.infer("masked-lm", [x("reversal")]),
            422,
            "text[0]: expected 1 to 64 masks",
        ),
        (lambda s, x: s.infer("reversal", [x("reversal")], priority=1), 422, "parameters.priority"),
        (lambda s, x: s.infer("reversal", [x("reversal")], timeout=1), 504, "not ready in time"),
        (
            lambda s, x: s.infer("reversal", [x("reversal")], sequence_id=1),
            422,
            "sequence_id: expe",
        ),
        (lambda s, _: s.load_model("reversal"), 403, "SIGHUP"),
        (lambda s, _: s.unload_model("reversal"), 403, "SIGHUP"),
        (lambda s, _: s.get_log_settings(), 404, "GET '/v2/logging': Not Found"),
    ],
    ids=lambda value: None if callable(value) else str(value)[:30],
)
def test_what_goes_wrong_reaches_the_user_as_text(triton, server, texts_of, call, status, message):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        call(server, texts_of)
    assert caught.value.status() == str(status)
    assert message in caught.value.message()


def test_an_output_that_does_not_exist_is_named(triton, server, texts_of):
    from tritonclient.utils import InferenceServerException

    outputs = [triton.InferRequestedOutput("logits")]
    with pytest.raises(
        InferenceServerException, match=r"outputs\[0\]\.name: expected one of output"
    ):
        server.infer("reversal", [texts_of("reversal")], outputs=outputs)

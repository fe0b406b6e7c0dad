"""Our own client against a live service: what it gives is what the service answers by hand."""

import asyncio
import dataclasses
import inspect

import numpy as np
import pytest

import triwire
from tests.service.tiny import CAUSAL, MASKED, PICTURE, PLOT, SOURCE_LEN, WIDTH
from triwire import AsyncTriwire, Triwire, TriwireError

GENERATOR = np.random.default_rng(0)
SHORT, LONG = (GENERATOR.normal(size=(n, WIDTH)).astype(np.float32) for n in (3, 9))
SOURCES = ["abcdefghijkl", "ponmlkjihgfe"]
# Arrays, in which numbers are float32; others are doubles and equal to the last bit.
ARRAYS = {"weights", "latents", "embedding"}

# A method, what it is given, and the request by hand: its path, its body.
CALLS = [
    ("fill_mask", ("a<mask>c",), {}, "fill-mask", {"inputs": "a<mask>c"}),
    (
        "fill_mask",
        (("a_c _", "_bc"),),
        {"top_k": 2, "targets": ("a", "b", " "), "mask_token": "_", "evidence": True},
        "fill-mask",
        {"inputs": ["a_c _", "_bc"], "top_k": 2, "targets": ["a", "b", " "], "mask_token": "_"}
        | {"evidence": True},
    ),
    (
        "fill_mask",
        ("a<mask>c",),
        {"attention": True, "model": "masked-lm"},
        "fill-mask",
        {"inputs": "a<mask>c", "attention": True, "model": "masked-lm"},
    ),
    ("decode", (SOURCES[0],), {}, "decode", {"inputs": SOURCES[0]}),
    (
        "decode",
        (SOURCES,),
        {"max_new_tokens": 5, "attention": {"layers": [0], "heads": "mean"}},
        "decode",
        {"inputs": SOURCES, "max_new_tokens": 5, "attention": {"layers": [0], "heads": "mean"}},
    ),
    ("decode", (SOURCES,), {"num_beams": 3}, "decode", {"inputs": SOURCES, "num_beams": 3}),
    ("latents", ("abc",), {}, "latents", {"inputs": "abc"}),
    (
        "latents",
        (["abc", "a longer text"],),
        {"reconstruct": True, "attention": {"heads": [1]}},
        "latents",
        {"inputs": ["abc", "a longer text"], "reconstruct": True, "attention": {"heads": [1]}},
    ),
    ("latents", (SHORT,), {}, "latents", {"features": SHORT.tolist()}),
    (
        "latents",
        ([SHORT, SHORT * 2],),
        {"model": "perceiver"},
        "latents",
        {"features": [SHORT.tolist(), (SHORT * 2).tolist()], "model": "perceiver"},
    ),
    (
        "latents",
        ((SHORT, LONG.astype(np.float64)),),
        {},
        "latents",
        {"features": [SHORT.tolist(), LONG.tolist()]},
    ),
    ("complete", ("ab",), {"temperature": 0}, "completions", {"prompt": "ab", "temperature": 0}),
    (
        "complete",
        (["ab", "c"],),
        {"max_tokens": 9, "n": 2, "seed": 3, "logprobs": 2, "top_p": 0.9, "stop": ("q", "x")},
        "completions",
        {"prompt": ["ab", "c"], "max_tokens": 9, "n": 2, "seed": 3, "logprobs": 2, "top_p": 0.9}
        | {"stop": ["q", "x"]},
    ),
    (
        "complete",
        ("ab",),
        {"echo": True, "seed": 0, "stop": "q", "model": "causal-lm"},
        "completions",
        {"prompt": "ab", "echo": True, "seed": 0, "stop": "q", "model": "causal-lm"},
    ),
]


@pytest.fixture(scope="module")
def url(live):
    return str(live.base_url)


@pytest.fixture(scope="module")
def client(url):
    with Triwire(url, timeout_s=600) as client:
        yield client


def awaited(url, method, *arguments, **options):
    """The same call by the asynchronous client."""

    async def ask():
        async with AsyncTriwire(url, timeout_s=600) as client:
            return await getattr(client, method)(*arguments, **options)

    return asyncio.run(ask())


def plain(value, name=""):
    """A result, or an answer in JSON, in lists and objects without what is None; no origins."""
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if name in ARRAYS:
        return np.asarray(value, np.float32).tolist()
    if isinstance(value, dict):
        return {
            key: plain(item, key)
            for key, item in value.items()
            if item is not None and key not in ("origin", "index")
        }
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def by_hand(live, path, body):
    """The results of the native call: one for one text, a list for a list."""
    answer = live.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    if path != "completions":
        results = plain(content["results"])
        given = body.get("inputs", body.get("features"))
        is_one = isinstance(given, str) or isinstance(given[0][0], float)
        return results[0] if is_one else results
    n = body.get("n", 1)
    choices = content["choices"]
    results = [
        {"normalized": choices[i]["normalized"], "choices": plain(choices[i : i + n])}
        for i in range(0, len(choices), n)
    ]
    for result in results:
        for choice in result["choices"]:
            del choice["normalized"]
    return results[0] if isinstance(body["prompt"], str) else results


@pytest.mark.parametrize(("method", "arguments", "options", "path", "body"), CALLS)
def test_a_result_is_what_the_service_answers_by_hand(
    live, url, client, method, arguments, options, path, body
):
    expected = by_hand(live, path, body)
    assert plain(getattr(client, method)(*arguments, **options)) == expected
    assert plain(awaited(url, method, *arguments, **options)) == expected


def test_the_calls_above_are_those_of_every_native_task():
    assert {path for *_, path, _ in CALLS} == {"fill-mask", "decode", "latents", "completions"}


@pytest.mark.parametrize("inputs", ["abc", ["abc", "de"], [1, 2], [[1, 2], [3]]])
@pytest.mark.parametrize("model", ["masked-lm", "perceiver"])
def test_embeddings_are_a_vector_for_one_and_a_matrix_for_several(live, url, client, inputs, model):
    answer = live.post("/v1/embeddings", json={"input": inputs, "model": model}).json()
    expected = np.array([item["embedding"] for item in answer["data"]], np.float32)
    if inputs in ("abc", [1, 2]):
        expected = expected[0]
    for found in (
        client.embeddings(inputs, model=model),
        awaited(url, "embeddings", inputs, model=model),
    ):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


def test_arrays_have_the_shapes_that_are_told(client):
    result = client.decode(SOURCES[0], attention=True)
    assert result.attention.weights.dtype == np.float32
    assert result.attention.weights.shape == result.attention.shape == (1, 2, 12, 12)
    np.testing.assert_allclose(result.attention.weights.sum(axis=-1), 1, atol=1e-5)
    assert client.latents("abc").latents.shape == (4, WIDTH)


def test_a_result_tells_where_it_comes_from(client):
    first, second = client.decode(SOURCES)
    assert first.origin is second.origin
    assert (first.origin.model, first.origin.version) == ("reversal", 1)
    assert first.origin.usage.input_tokens == 2 * SOURCE_LEN
    assert first.origin.request_id
    assert set(first.origin.timing_ms) == {"queue", "compute", "total"}
    completion = client.complete("ab", max_tokens=3, temperature=0)
    assert completion.origin.usage.completion_tokens == 3
    assert completion.text == completion.choices[0].text


def test_the_catalogue_is_that_of_the_service(live, url, client):
    listed = live.get("/v1/models").json()["data"]
    for model in listed:
        # What the OpenAI schema wants to be there, and is the same of every model.
        assert (model.pop("object"), model.pop("owned_by")) == ("model", "triwire")
    assert [plain(model) for model in client.models()] == [plain(model) for model in listed]
    assert client.model("masked-lm") in awaited(url, "models")
    assert client.model("masked-lm").mask_token == "<mask>"
    assert client.model("causal-lm").alphabet == CAUSAL.alphabet == MASKED.alphabet
    assert client.plot("masked-lm", PLOT) == PICTURE == awaited(url, "plot", "masked-lm", PLOT)


def test_probes_tell_what_the_service_is(url, client):
    assert client.live() is True
    readiness = client.ready()
    assert readiness == awaited(url, "ready")
    assert readiness.is_ready
    assert set(readiness.models) == {"masked-lm", "reversal", "perceiver", "causal-lm"}


def test_a_stream_gives_the_tokens_of_the_whole_and_then_the_whole(url, client):
    whole = client.decode(SOURCES, attention=True)

    async def stream():
        async with (
            AsyncTriwire(url, timeout_s=600) as asking,
            asking.decode_stream(SOURCES, attention=True) as stream,
        ):
            return [token async for token in stream], await stream.result()

    with client.decode_stream(SOURCES, attention=True) as events:
        both = [(list(events), events.result()), asyncio.run(stream())]
    for tokens, result in both:
        assert plain(result) == plain(whole)
        for index, one in enumerate(whole):
            streamed = [token for token in tokens if token.index == index]
            assert [token.position for token in streamed] == list(range(SOURCE_LEN))
            assert [(t.token, t.logprob) for t in streamed] == [
                (t.token, t.logprob) for t in one.tokens
            ]


def test_the_result_of_a_stream_waits_for_it(client):
    assert client.decode_stream(SOURCES[0]).result().output == client.decode(SOURCES[0]).output


def test_a_stream_that_is_left_has_no_result_and_harms_nothing(client):
    with client.decode_stream(SOURCES[0]) as stream:
        next(iter(stream))
    with pytest.raises(TriwireError, match="left before its end"):
        stream.result()
    assert client.decode(SOURCES[0]).output


REFUSED = [
    ("fill_mask", ("abc",), {}, 422, "inputs", "expected 1 to 64 masks '<mask>', got 0"),
    ("decode", ("ABC",), {}, 422, "inputs", "expected"),
    ("decode", (SOURCES[0],), {"model": "nobody"}, 404, "model", "expected"),
    ("decode", (SOURCES[0],), {"attention": {"layers": [7]}}, 422, "attention.layers", "0 to 0"),
    ("decode_stream", ("",), {}, 422, "inputs", "got 0"),
    ("latents", (SHORT[:, :3],), {}, 422, "features", "expected"),
    ("latents", (SHORT,), {"reconstruct": True}, 422, "reconstruct", "features"),
    ("latents", (SHORT * np.float32("nan"),), {}, 422, "features", "got nan"),
    ("embeddings", ("abc",), {}, 422, "model", "expected"),
    ("complete", ("ab",), {"temperature": 3.0}, 422, "temperature", "2"),
    ("complete", ("ab",), {"temperature": float("nan")}, 400, None, "expected a body of JSON"),
    ("fill_mask", ("\ud800<mask>",), {}, 400, None, "expected"),
    ("model", ("no?body",), {}, 404, "model", "'no?body'"),
    ("reload", ("reversal",), {}, 403, None, "API keys"),
]


CODES = ("invalid_value", "model_not_found", "malformed_request", "not_allowed")


@pytest.mark.parametrize(("method", "arguments", "options", "status", "param", "told"), REFUSED)
def test_what_the_service_refuses_is_an_error_that_says_why(
    url, client, method, arguments, options, status, param, told
):
    async def ask():
        async with AsyncTriwire(url, timeout_s=600) as asking:
            made = getattr(asking, method)(*arguments, **options)
            return await (made.result() if "stream" in method else made)

    def ask_at_once():
        made = getattr(client, method)(*arguments, **options)
        return made.result() if "stream" in method else made

    for call in (ask_at_once, lambda: asyncio.run(ask())):
        with pytest.raises(TriwireError) as caught:
            call()
        error = caught.value
        assert error.status == status, error
        assert (error.param or "").startswith(param or "")
        assert told in error.message
        assert str(error) == error.message
        assert error.request_id
        assert error.code in (
            "invalid_value",
            "model_not_found",
            "malformed_request",
            "not_allowed",
        )


# Nothing of these is lost: how numbers are written is the client's affair, a method of its own
# streams, an embedding has the width that its model has, nobody reads ``user``, and the last four
# are what the OpenAI schema has and the service does not.
NOT_OFFERED = {"stream", "stream_options", "encoding_format", "features", "dimensions", "user"}
NOT_OFFERED |= {"frequency_penalty", "presence_penalty", "logit_bias", "suffix"}


def test_every_field_of_every_request_can_be_given():
    from service import schemas

    requests = {
        "fill_mask": schemas.FillMaskRequest,
        "decode": schemas.DecodeRequest,
        "decode_stream": schemas.DecodeRequest,
        "latents": schemas.LatentsRequest,
        "embeddings": schemas.EmbeddingsRequest,
        "complete": schemas.CompletionRequest,
    }
    for method, schema in requests.items():
        offered = inspect.signature(getattr(Triwire, method)).parameters.keys() - {"self"}
        fields = {"inputs" if name == "input" else name for name in schema.model_fields}
        assert fields - NOT_OFFERED <= offered, method


def test_every_field_of_every_answer_is_in_the_result():
    from service.tasks import attention, complete, decode, decode_stream, fill_mask, latents

    answers = {
        triwire.FillMaskResult: fill_mask.FillMaskResult,
        triwire.MaskResult: fill_mask.MaskResult,
        triwire.Candidate: fill_mask.Candidate,
        triwire.Evidence: fill_mask.Evidence,
        triwire.Side: fill_mask.Side,
        triwire.DecodeResult: decode.DecodeResult,
        triwire.DecodedToken: decode.DecodedToken,
        triwire.Beam: decode.Beam,
        triwire.Alignment: decode.Alignment,
        triwire.StreamedToken: decode_stream.StreamedToken,
        triwire.LatentsResult: latents.LatentsResult,
        triwire.AttentionMap: attention.AttentionMap,
        triwire.CompletionLogprobs: complete.CompletionLogprobs,
    }
    for ours, theirs in answers.items():
        ours_names = {field.name for field in dataclasses.fields(ours)} - {"origin"}
        assert ours_names == {field.name for field in dataclasses.fields(theirs)}


def test_both_clients_have_the_same_methods_with_the_same_arguments():
    names = [name for name in vars(Triwire) if not name.startswith("_")]
    assert len(names) > 14
    for name in names:
        sync, later = getattr(Triwire, name), getattr(AsyncTriwire, name)
        assert (
            inspect.signature(sync).parameters.keys() == inspect.signature(later).parameters.keys()
        )

"""Random requests: whatever comes, the answer is one that the contract has, and never a fault."""

import io
import math

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.fakes import read_events
from tests.service.tiny import WIDTH

DOCUMENTED = {200, 400, 404, 413, 415, 422, 429, 504}
REFUSALS = {400, 404, 413, 415, 422}

fuzz = settings(
    max_examples=120,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-2, 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
letters = st.text("abcdefghijklmnop", min_size=12, max_size=12)
indices = st.lists(st.integers(-1, 3), max_size=4)
attention = st.fixed_dictionaries(
    {},
    optional={
        "layers": st.just("all") | indices | values,
        "heads": st.sampled_from(["all", "mean"]) | indices | values,
        "encoding": st.sampled_from(["float", "base64"]) | values,
    },
)
masked = st.lists(st.sampled_from(["<mask>", "a", "Time ", "\U0001f642", " "]), max_size=40).map(
    "".join
)
numbers = st.floats(-1e7, 1e7) | st.integers(-3, 3)
ids = st.lists(st.integers(-1, 29), max_size=20)
rows = st.lists(numbers, min_size=WIDTH, max_size=WIDTH)
matrix = st.lists(rows, max_size=4)
packed = st.fixed_dictionaries(
    {"data": st.sampled_from(["", "AAAA", "A" * 44, "?"]) | text},
    optional={
        "shape": st.lists(st.sampled_from([-1, 0, 1, 4, 8, 2**31, 2**63]), max_size=4) | values,
        "dtype": st.sampled_from(["float32", "float64"]) | values,
    },
)


def one_or_list(strategy):
    return strategy | st.lists(strategy, max_size=4)


STREAM_OPTIONS = {"include_usage": st.booleans(), "include_obfuscation": st.just(False)}

# What every field may be, beside anything at all.
FIELDS = {
    "/v1/fill-mask": {
        "inputs": one_or_list(masked),
        "top_k": st.integers(1, 40),
        "targets": st.lists(st.sampled_from("abc <"), max_size=3),
        "mask_token": st.sampled_from(["<mask>", "a", "T", " "]),
        "evidence": st.booleans(),
        "attention": st.booleans() | attention,
    },
    "/v1/decode": {
        "inputs": one_or_list(letters),
        "max_new_tokens": st.integers(1, 20),
        "attention": st.booleans() | attention,
        "num_beams": st.integers(1, 8),
        "stream": st.booleans(),
    },
    "/v1/latents": {
        "inputs": one_or_list(text),
        "features": one_or_list(matrix) | packed,
        "encoding_format": st.sampled_from(["float", "base64"]),
        "reconstruct": st.booleans(),
    },
    "/v1/embeddings": {
        "model": st.sampled_from(["masked-lm", "perceiver", "reversal"]),
        "input": one_or_list(text) | one_or_list(ids),
        "encoding_format": st.sampled_from(["float", "base64"]),
        "dimensions": st.sampled_from([None, WIDTH, 3]),
        "user": text,
    },
    "/v1/completions": {
        "prompt": one_or_list(text) | one_or_list(ids),
        "max_tokens": st.integers(0, 20),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "n": st.integers(1, 4),
        "best_of": st.none() | st.integers(0, 6),
        "stop": one_or_list(text | st.sampled_from(["e", "th", "<"])),
        "seed": st.integers(-(2**63), 2**63),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 5),
        "stream": st.booleans(),
        "stream_options": st.none() | st.fixed_dictionaries({}, optional=STREAM_OPTIONS),
        "frequency_penalty": st.sampled_from([None, 0, 0.0, 1.5]),
        "logit_bias": st.sampled_from([None, {}, {"5": 1}]),
        "suffix": st.sampled_from([None, "", "end"]),
        "user": text,
    },
}

# The same of the Hugging Face protocol, whose bodies name no model.
SAMPLING = {
    "max_new_tokens": st.integers(1, 20),
    "do_sample": st.none() | st.booleans(),
    "temperature": st.none() | st.floats(0, 2),
    "top_p": st.none() | st.floats(0, 1),
    "seed": st.integers(0, 2**63),
    "best_of": st.none() | st.integers(1, 4),
    "stop": st.lists(text | st.sampled_from(["a", "th", "<"]), max_size=5),
    "num_beams": st.none() | st.integers(1, 9),
    "return_full_text": st.none() | st.booleans(),
    "truncate": st.none() | st.integers(1, 20),
    "details": st.booleans(),
    "top_n_tokens": st.none() | st.integers(0, 5),
    "top_k": st.none() | st.integers(0, 3),
    "watermark": st.booleans(),
}
TARGETS = {
    "top_k": st.none() | st.integers(1, 40),
    "targets": st.sampled_from("abc <") | st.lists(st.sampled_from("abc <"), max_size=3),
}


def parameters(fields):
    return st.none() | st.fixed_dictionaries({}, optional=fields)


FIELDS |= {
    "/models/masked-lm": {
        "inputs": one_or_list(masked)
        | st.fixed_dictionaries(
            {}, optional={"source_sentence": text, "sentences": st.lists(text)}
        ),
        "parameters": parameters(TARGETS),
        "normalize": st.booleans(),
    },
    "/models/masked-lm/feature-extraction": {
        "inputs": one_or_list(masked | text),
        "normalize": st.none() | st.booleans(),
        "truncate": st.none() | st.booleans(),
        "truncation_direction": st.sampled_from([None, "left", "right"]),
        "dimensions": st.sampled_from([None, WIDTH, 3]),
        "encoding_format": st.sampled_from([None, "float", "base64"]),
    },
    "/models/causal-lm": {
        "inputs": text,
        "parameters": parameters(SAMPLING),
        "stream": st.none() | st.booleans(),
    },
    "/models/reversal": {
        "inputs": letters,
        "parameters": parameters(SAMPLING),
        "stream": st.none() | st.booleans(),
    },
    "/models/reversal/translation": {
        "inputs": letters,
        "parameters": parameters(
            {"generate_parameters": parameters({"num_beams": st.integers(1, 9)})}
        ),
    },
}


def bodies(path):
    """Objects whose fields are mostly such as they should be, one of them anything at all."""
    models = {"model": st.sampled_from([None, "masked-lm", "nothing"])}
    fields = FIELDS[path] if path.startswith("/models/") else models | FIELDS[path]
    likely = st.fixed_dictionaries({}, optional=fields)
    anything = st.dictionaries(st.sampled_from(sorted(fields)) | text, values, max_size=1)
    return st.builds(lambda one, other: one | other, likely, anything | st.just({}))


def require_documented(answer):
    assert answer.status_code in DOCUMENTED, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.status_code == 200
        *events, last = read_events(answer.text)
        assert last == "[DONE]"
        require_finite([orjson.loads(event) for event in events])
        return
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if answer.status_code == 200:
        require_finite(body)
        return
    error = body["error"]
    if isinstance(error, str):
        assert list(body) == ["error", "error_type"]
        error = {"message": error}
    else:
        assert list(error) == ["message", "type", "param", "code", "request_id"]
    assert 0 < len(error["message"]) < 500
    if answer.status_code in REFUSALS:
        assert "expected" in error["message"]
    # Pydantic's own words, which speak of Python.
    assert "Input should" not in error["message"]
    assert "should have" not in error["message"]


def require_finite(value):
    if isinstance(value, dict):
        for inner in value.values():
            require_finite(inner)
    elif isinstance(value, list):
        for inner in value:
            require_finite(inner)
    elif isinstance(value, float):
        assert math.isfinite(value)


@pytest.mark.parametrize("path", FIELDS)
@fuzz
@given(data=st.data())
def test_any_fields_are_answered_as_documented(client, path, data):
    body = data.draw(bodies(path))
    require_documented(client.post(path, json=body))


@pytest.mark.parametrize("path", FIELDS)
@fuzz
@given(body=values)
def test_any_json_is_answered_as_documented(client, path, body):
    require_documented(client.post(path, json=body))


@fuzz
@given(path=st.sampled_from(sorted(FIELDS)), data=st.data())
def test_any_bytes_in_the_place_of_some_are_answered_as_documented(client, path, data):
    good = orjson.dumps(data.draw(st.fixed_dictionaries({}, optional=FIELDS[path])))
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(start + 6, len(good))))
    body = good[:start] + data.draw(st.binary(max_size=6)) + good[end:]
    headers = {"Content-Type": "application/json"}
    require_documented(client.post(path, content=body, headers=headers))


@fuzz
@given(data=st.data())
def test_any_array_is_answered_as_documented(client, data):
    """Files that are mostly right, with some bytes in the place of others."""
    file = io.BytesIO()
    kinds = st.sampled_from(["<f4", ">f4", "<f8", "<i4", "|b1", "<U3"])
    shape = data.draw(st.lists(st.sampled_from([0, 1, 3, WIDTH]), max_size=4))
    np.save(file, np.zeros([*shape, WIDTH], data.draw(kinds)), allow_pickle=False)
    good = file.getvalue()
    start = data.draw(st.integers(0, min(len(good), 140)))
    end = data.draw(st.integers(start, min(start + 4, len(good))))
    body = data.draw(st.just(good) | st.just(good[:start] + b"9" + good[end:]))
    headers = {"Content-Type": "application/x-npy"}
    require_documented(client.post("/v1/latents", content=body, headers=headers))


def test_the_service_is_as_good_after_all_this_as_before(client):
    generator = np.random.default_rng(0)
    for _ in range(3):
        source = "".join(generator.choice(list("abcdefghijklmnop"), 12))
        assert client.post("/v1/decode", json={"inputs": source}).status_code == 200
    assert client.get("/readyz").status_code == 200

"""Random tensors: whatever comes, the answer is one that the contract has, and never a fault."""

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.tensors import DTYPES, LENGTH_BYTES, write_tensor
from tests.service.test_fuzz import DOCUMENTED, REFUSALS, fuzz, masked, require_finite, values
from tests.service.tiny import WIDTH

MODELS = ["masked-lm", "reversal", "causal-lm", "perceiver"]
LENGTH = "Inference-Header-Content-Length"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
sizes = st.sampled_from([-1, 0, 1, 2, 3, WIDTH, 2**31, 2**63])
shapes = st.lists(sizes, max_size=4)
names = st.sampled_from(["text", "tokens", "lengths", "features"]) | text
outputs = st.sampled_from(
    ["filled", "scores", "attention", "embeddings", "output", "beams", "latents", "fidelity"]
)
sources = st.sampled_from(["abcdefghijkl", "the ", "a<mask>"]) | masked
texts = st.lists(sources | text, min_size=1, max_size=3)
right = st.builds(
    lambda data: {"name": "text", "shape": [len(data)], "datatype": "BYTES", "data": data}, texts
)
parameters = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(-1, 40) | values,
        "num_beams": st.integers(0, 9),
        "max_tokens": st.integers(0, 9),
        "temperature": st.floats(-1, 3),
        "timeout": st.integers(0, 10**7) | values,
        "priority": st.sampled_from([0, 1]),
        "binary_data_output": st.booleans() | values,
    },
)
wrong = st.fixed_dictionaries(
    {"name": names, "shape": shapes | values, "datatype": st.sampled_from([*DTYPES, "FP64", ""])},
    optional={
        "data": values,
        "parameters": st.fixed_dictionaries({"binary_data_size": sizes}) | values,
    },
)
requests = st.fixed_dictionaries(
    {"inputs": st.lists(right | wrong, max_size=3) | values},
    optional={
        "id": text | values,
        "outputs": st.lists(st.fixed_dictionaries({"name": outputs | text}), max_size=3) | values,
        "parameters": parameters | values,
    },
)


def require_documented(answer):
    assert answer.status_code in DOCUMENTED, answer.text
    if answer.status_code != 200:
        assert answer.headers["content-type"] == "application/json"
        assert list(answer.json()) == ["error"]
        message = answer.json()["error"]
        assert 0 < len(message) < 500
        assert "expected" in message or answer.status_code not in REFUSALS
        assert "Input should" not in message
        return
    length = int(answer.headers.get(LENGTH, len(answer.content)))
    body = orjson.loads(answer.content[:length])
    require_finite(body)
    raw = sum(own.get("parameters", {}).get("binary_data_size", 0) for own in body["outputs"])
    assert length + raw == len(answer.content)


@pytest.mark.parametrize("model", MODELS)
@fuzz
@given(body=requests)
def test_any_tensors_are_answered_as_documented(client, model, body):
    require_documented(client.post(f"/v2/models/{model}/infer", json=body))


@fuzz
@given(body=values)
def test_any_json_is_answered_as_documented(client, body):
    require_documented(client.post("/v2/models/masked-lm/infer", json=body))


def right_body(model):
    """A right request with raw tensors, as its JSON and what lies behind it."""
    sources = {"masked-lm": "a<mask>é", "reversal": "abcdefghijkl"}
    arrays = {"text": ("BYTES", np.array([sources.get(model, "the time")] * 2, dtype=object))}
    if model == "perceiver":
        features = np.full((2, 3, WIDTH), 0.5, np.float32)
        arrays = {
            "features": ("FP32", features),
            "lengths": ("INT64", np.array([3, 2])),
        }
    written = [
        write_tensor(name, datatype, array, binary=True)
        for name, (datatype, array) in arrays.items()
    ]
    inputs = [
        {
            "name": own.name,
            "shape": own.shape,
            "datatype": own.datatype,
            "parameters": own.parameters,
        }
        for own, _ in written
    ]
    request = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    return orjson.dumps(request), b"".join(tail for _, tail in written)


@pytest.mark.parametrize("model", MODELS)
@fuzz
@given(data=st.data())
def test_any_bytes_in_the_place_of_some_are_answered_as_documented(client, model, data):
    """In the JSON, in the lengths of texts and in numbers; and JSON of another length."""
    head, tail = right_body(model)
    good = head + tail
    start = data.draw(st.integers(0, len(good)) | st.integers(len(head), len(head) + LENGTH_BYTES))
    end = data.draw(st.integers(start, min(start + 6, len(good))))
    body = good[:start] + data.draw(st.binary(max_size=6)) + good[end:]
    length = data.draw(st.sampled_from([len(head), 0, len(head) - 1, len(body), len(body) + 1]))
    coding = data.draw(st.sampled_from([""] * 4 + ["gzip", "deflate", "br"]))
    headers = {LENGTH: str(length), "Content-Encoding": coding}
    path = f"/v2/models/{model}/infer"
    require_documented(client.post(path, content=body, headers=headers))


@pytest.mark.parametrize("model", MODELS)
def test_what_bytes_were_changed_in_was_right(client, model):
    head, tail = right_body(model)
    path = f"/v2/models/{model}/infer"
    answer = client.post(path, content=head + tail, headers={LENGTH: str(len(head))})
    assert answer.status_code == 200
    require_documented(answer)

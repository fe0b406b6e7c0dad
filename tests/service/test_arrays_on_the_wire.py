"""What becomes of arrays between the device and the caller."""

import asyncio
import io

import numpy as np
import pytest

from service import encoding, npy
from tests.service.tiny import WIDTH

NPY = "application/x-npy"
REQUESTS = {
    "fill-mask": ("/v1/fill-mask", {"inputs": "a tim<mask>"}),
    "evidence": ("/v1/fill-mask", {"inputs": "a tim<mask>", "evidence": True}),
    "attention": ("/v1/fill-mask", {"inputs": "a tim<mask>", "attention": True}),
    "decode": ("/v1/decode", {"inputs": "abcdefghijkl"}),
    "latents": ("/v1/latents", {"inputs": "the time machine"}),
    "latents in base64": ("/v1/latents", {"inputs": "a", "encoding_format": "base64"}),
    "reconstruction": ("/v1/latents", {"inputs": "a", "reconstruct": True}),
    "features": ("/v1/latents", {"features": [[0.5] * WIDTH]}),
    "embeddings": ("/v1/embeddings", {"model": "masked-lm", "input": "a"}),
    "embeddings of latents": ("/v1/embeddings", {"model": "perceiver", "input": "a"}),
    "completions": ("/v1/completions", {"prompt": "the ", "max_tokens": 2}),
}


@pytest.fixture(params=[np.nan, np.inf, -np.inf], ids=str)
def spoil(client, monkeypatch, request):
    """Makes every model give one value that is not finite in the first array of floats."""

    def spoiled(outputs):
        name = next(name for name, array in outputs.items() if array.dtype.kind == "f")
        array = outputs[name].copy()
        array.reshape(len(array), -1)[0, -1] = request.param
        return outputs | {name: array}

    for model in client.app.state.context.registry.models.values():
        call = model.engine._call
        monkeypatch.setattr(model.engine, "_call", lambda *a, call=call: spoiled(call(*a)))


@pytest.mark.parametrize(("path", "body"), REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize("accept", ["application/json", NPY])
def test_what_is_not_finite_is_a_fault_and_never_null(client, spoil, path, body, accept):
    """Masks and padding included: the row of a request is refused whatever it would show of it."""
    if accept == NPY and "reconstruct" in body:
        body = {"inputs": "a"}
    answer = client.post(path, json=body, headers={"Accept": accept})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "non_finite_output")
    assert "NaN" not in error["message"]


def test_one_row_that_is_not_finite_spoils_no_other_request(client, monkeypatch):
    engine = client.app.state.context.registry.find("perceiver").engine
    run, short = engine._call, 3

    def call(program, batch, length, arguments):
        outputs = run(program, batch, length, arguments)
        wrong = (arguments.views[1] == short)[:, None, None]
        return outputs | {"latents": np.where(wrong, np.float32(np.nan), outputs["latents"])}

    monkeypatch.setattr(engine, "_call", call)
    statuses = [
        client.post("/v1/latents", json={"inputs": "a" * size}).status_code
        for size in (2, short, 4)
    ]
    assert statuses == [200, 500, 200]
    both = client.post("/v1/latents", json={"inputs": ["aa", "aaa"]})
    assert both.status_code == 500


@pytest.fixture
def encoded_on_loop(monkeypatch):
    """For every array and every answer that is encoded from now on, whether that held up a loop."""
    seen = []

    def watched(function):
        def watch(*arguments):
            try:
                asyncio.get_running_loop()
                seen.append(True)
            except RuntimeError:
                seen.append(False)
            return function(*arguments)

        return watch

    # What the tiny models give is large here.
    monkeypatch.setattr("service.encoding.FEW_VALUES", 10)
    monkeypatch.setattr("service.transport.to_json", watched(encoding.to_json))
    monkeypatch.setattr("service.tasks.latents.write_npy", watched(npy.write_npy))
    for task in ("attention", "latents"):
        monkeypatch.setattr(f"service.tasks.{task}.encode_array", watched(encoding.encode_array))
    return seen


@pytest.mark.parametrize(
    "name",
    ["attention", "latents", "latents in base64", "reconstruction", "features", "embeddings"],
)
def test_large_answers_are_encoded_off_the_event_loop(client, encoded_on_loop, name):
    path, body = REQUESTS[name]
    assert client.post(path, json=body).status_code == 200
    assert encoded_on_loop
    assert not any(encoded_on_loop)


def test_an_array_is_written_and_read_off_the_event_loop(client, encoded_on_loop):
    file = io.BytesIO()
    np.save(file, np.zeros((5, WIDTH), np.float32))
    headers = {"Content-Type": NPY, "Accept": NPY}
    assert client.post("/v1/latents", content=file.getvalue(), headers=headers).status_code == 200
    assert encoded_on_loop == [False]

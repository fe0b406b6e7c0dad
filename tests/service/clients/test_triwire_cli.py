"""The command against a live service: what it shows is what the service answered."""

import json

import numpy as np
import pytest

from tests.service.tiny import SOURCE_LEN, WIDTH
from triwire.cli.main import main

SOURCE = "abcdefghijkl"


@pytest.fixture
def triwire(live, capsys, monkeypatch):
    """What a command writes, which must end well."""
    monkeypatch.setenv("TRIWIRE_URL", str(live.base_url))
    monkeypatch.delenv("TRIWIRE_API_KEY", raising=False)

    def triwire(*arguments):
        assert main([*arguments, "--timeout", "600"]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return triwire


COMMANDS = [
    (["fill-mask", "a_c"], "fill-mask", {"inputs": "a_c", "mask_token": "_"}),
    (
        ["fill-mask", "a<mask>c", "b<mask>", "--evidence", "--top-k", "2"],
        "fill-mask",
        {"inputs": ["a<mask>c", "b<mask>"], "evidence": True, "top_k": 2},
    ),
    (
        ["decode", SOURCE, "--attention", "--head", "1"],
        "decode",
        {"inputs": SOURCE, "attention": {"heads": [1]}},
    ),
    (["decode", SOURCE, "--num-beams", "2"], "decode", {"inputs": SOURCE, "num_beams": 2}),
    (
        ["embeddings", "a", "b", "--model", "perceiver"],
        "embeddings",
        {"input": ["a", "b"], "model": "perceiver"},
    ),
]


@pytest.mark.parametrize(("arguments", "path", "body"), COMMANDS)
def test_json_is_what_the_service_answers_by_hand(live, triwire, arguments, path, body):
    answer = live.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert json.loads(triwire(*arguments, "--json")) == answer.json()


def test_candidates_are_shown_with_what_each_side_says(live, triwire):
    body = {"inputs": "a<mask>c", "evidence": True, "top_k": 3}
    (result,) = live.post("/v1/fill-mask", json=body).json()["results"]
    (mask,) = result["masks"]
    shown = triwire("fill-mask", "a<mask>c", "--evidence", "--top-k", "3").splitlines()
    assert shown[0] == result["filled"]
    for index, candidate in enumerate(mask["candidates"]):
        (line,) = [line for line in shown if f"{candidate['score']:.4f}" in line.split()]
        for side in ("left", "right"):
            assert f"{mask['evidence'][side]['scores'][index]:.4f}" in line.split()
    assert f"{mask['entropy']:.2f}" in " ".join(shown)


def test_the_heat_map_is_that_of_the_weights(live, triwire):
    body = {"inputs": SOURCE, "attention": {"heads": "mean"}}
    (result,) = live.post("/v1/decode", json=body).json()["results"]
    weights = np.array(result["attention"]["weights"], np.float32)[-1, 0]
    lines = triwire("decode", SOURCE, "--attention").splitlines()
    start = lines.index("   " + " ".join(SOURCE)) + 1
    shown = [line.split() for line in lines[start : start + SOURCE_LEN]]
    assert "".join(row[0] for row in shown) == result["output"].replace(" ", "␣")
    digits = np.array([[int(cell) if cell != "." else 0 for cell in row[1:]] for row in shown])
    np.testing.assert_allclose(digits, weights / weights.max() * 9, atol=0.51)


def test_a_stream_shows_the_output(live, triwire):
    (result,) = live.post("/v1/decode", json={"inputs": SOURCE}).json()["results"]
    assert triwire("decode", SOURCE, "--stream") == result["output"] + "\n"


def test_latents_of_text_and_of_arrays_are_saved_as_they_came(live, triwire, tmp_path):
    text, array, out = tmp_path / "text", tmp_path / "in.npy", tmp_path / "out.npy"
    text.write_text("a text of a file")
    vectors = np.random.default_rng(0).normal(size=(5, WIDTH)).astype(np.float32)
    np.save(array, vectors)
    for file, body in (
        (text, {"inputs": text.read_text()}),
        (array, {"features": vectors.tolist()}),
    ):
        (result,) = live.post("/v1/latents", json=body).json()["results"]
        shown = triwire("latents", str(file), "-o", str(out))
        np.testing.assert_array_equal(np.load(out), np.array(result["latents"], np.float32))
        assert str(result["length"]) in shown.split()


def test_what_is_loaded_is_listed_and_told(live, triwire):
    lines = triwire("models").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        model["id"] for model in live.get("/v1/models").json()["data"]
    ]
    assert "masked_accuracy 0.25" in triwire("models", "masked-lm")
    assert triwire("ready").startswith("ready: ")


def test_a_completion_is_written(live, triwire):
    body = {"prompt": "ab", "max_tokens": 6, "temperature": 0}
    (choice,) = live.post("/v1/completions", json=body).json()["choices"]
    assert triwire("complete", "ab", "--max-tokens", "6", "--temperature", "0") == (
        choice["text"] + "\n"
    )

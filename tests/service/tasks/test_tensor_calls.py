"""Tensors in and out are the native calls in another form: every value is theirs."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.wirings import WIRINGS
from service.errors import ModelNotFound, NotReady
from service.registry import Registry
from service.tasks import PROGRAMS, tensor_calls
from tests.service import fakes, tiny
from tests.service.tiny import NUM_LATENTS, WIDTH, WINDOW

DOCS = Path(__file__).parent.parent.parent.parent / "docs"
# Rows that share a batch with others can differ in the last bits.
TOLERANCE = {"atol": 1e-5}
MASKED = ["<mask> time", "a<mask>b<mask>"]
SOURCES = ["abcdefghijkl", "ponmlkjihgfe"]
DTYPES = {"BYTES": object, "FP32": np.float32, "INT32": np.int32}


def tensor(name, datatype, array):
    array = np.array(array)
    shape = list(array.shape)
    return {"name": name, "datatype": datatype, "shape": shape, "data": array.ravel().tolist()}


@pytest.fixture(scope="module")
def infer(ask):
    """The outputs of a request that must succeed, as arrays by name."""

    def infer(model, inputs, outputs=(), **parameters):
        asked = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
        answer = ask(f"/v2/models/{model}/infer", inputs=inputs, parameters=parameters, **asked)
        assert list(answer) == ["model_name", "model_version", "outputs"]
        assert (answer["model_name"], answer["model_version"]) == (model, "1")
        return {
            output["name"]: np.array(output["data"], DTYPES[output["datatype"]]).reshape(
                output["shape"]
            )
            for output in answer["outputs"]
        }

    return infer


@pytest.fixture(scope="module")
def signatures():
    return {card.name: tensor_calls.CALLS[card.wiring].signature(card) for card in tiny.cards()}


def test_every_wiring_that_models_can_have_is_described():
    assert tensor_calls.CALLS.keys() == WIRINGS.keys()


def test_the_page_of_the_protocol_has_a_table_of_every_tensor(signatures):
    page = (DOCS / "open-inference-protocol.md").read_text(encoding="utf-8")
    sections = page.split("\n## ")
    titles = {"masked-lm": "Encoder", "reversal": "Encoder-decoder", "causal-lm": "Decoder"}
    for name, signature in signatures.items():
        title = titles.get(name, "Perceiver")
        (section,) = [own for own in sections if own.startswith(f"{title}\n")]
        rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| \[(.*?)\] \|(.*)$", section, flags=re.M)
        told = [(name, types, axes.count(",") + 1) for name, types, axes, _ in rows]
        tensors = [*signature.inputs, *signature.outputs]
        assert told == [(t.name, " or ".join(t.datatypes), len(t.shape)) for t in tensors]
        named = {name for name, _, _, meaning in rows if "where named" in meaning}
        assert named == {own.name for own in signature.outputs} - set(signature.forms[0].outputs)
        for parameter in signature.parameters:
            assert f"`{parameter}`" in section


def test_all_tensors_belong_to_a_form_and_are_told_apart(signatures):
    for signature in signatures.values():
        inputs = {name for form in signature.forms for name in (*form.inputs, *form.optional)}
        outputs = {name for form in signature.forms for name in (*form.outputs, *form.others)}
        assert inputs == {spec.name for spec in signature.inputs}
        assert outputs == {spec.name for spec in signature.outputs}
        assert len({spec.name for spec in signature.outputs}) == len(signature.outputs)


def test_masks_are_filled_as_ever_and_padded_to_the_text_with_most(ask, infer):
    outputs = infer("masked-lm", [tensor("text", "BYTES", MASKED)], top_k=3)
    native = ask("/v1/fill-mask", inputs=MASKED, top_k=3)["results"]
    assert outputs["filled"].tolist() == [result["filled"] for result in native]
    assert outputs["normalized"].tolist() == [result["normalized"] for result in native]
    assert outputs["num_masks"].tolist() == [1, 2]
    assert outputs["candidates"].shape == outputs["scores"].shape == (2, 2, 3)
    for row, result in enumerate(native):
        for column, mask in enumerate(result["masks"]):
            told = mask["candidates"]
            assert outputs["positions"][row, column] == mask["position"]
            assert outputs["candidates"][row, column].tolist() == [c["token"] for c in told]
            assert outputs["candidate_ids"][row, column].tolist() == [c["token_id"] for c in told]
            np.testing.assert_allclose(
                outputs["scores"][row, column], [c["score"] for c in told], **TOLERANCE
            )
            np.testing.assert_allclose(outputs["entropy"][row, column], mask["entropy"], rtol=1e-5)
    padding = {name: outputs[name][0, 1].ravel().tolist() for name in outputs if name in PADDED}
    assert padding == PADDED


PADDED = {
    "positions": [-1],
    "entropy": [0.0],
    "candidates": [""] * 3,
    "candidate_ids": [-1] * 3,
    "scores": [0.0] * 3,
}


def test_another_mask_is_named_by_a_parameter(infer):
    named = infer("masked-lm", [tensor("text", "BYTES", ["a_b"])], ["filled"], mask_token="_")
    usual = infer("masked-lm", [tensor("text", "BYTES", ["a<mask>b"])], ["filled"])
    assert named["filled"].tolist() == usual["filled"].tolist()


@pytest.mark.parametrize(
    ("model", "path", "texts"),
    [
        ("masked-lm", "/v1/fill-mask", MASKED),
        ("reversal", "/v1/decode", SOURCES),
        ("perceiver", "/v1/latents", ["the time", "abc"]),
    ],
)
def test_attention_is_that_of_the_native_call_and_zero_beyond_a_text(
    ask, infer, model, path, texts
):
    attention = infer(model, [tensor("text", "BYTES", texts)], ["attention"])["attention"]
    native = [result["attention"] for result in ask(path, inputs=texts, attention=True)["results"]]
    assert attention.shape == (2, *np.max([own["shape"] for own in native], axis=0))
    for found, own in zip(attention, native, strict=True):
        layers, heads, targets, sources = own["shape"]
        inside = found[:layers, :heads, :targets, :sources]
        np.testing.assert_allclose(inside, np.array(own["weights"]), **TOLERANCE)
        np.testing.assert_allclose(inside.sum(axis=-1), 1, **TOLERANCE)
        assert np.count_nonzero(found) == np.count_nonzero(inside)


@pytest.mark.parametrize("model", ["masked-lm", "perceiver"])
def test_embeddings_are_the_same_of_text_of_tokens_and_by_the_native_call(ask, infer, model):
    texts = ["the time", "abc"]
    card = next(card for card in tiny.cards() if card.name == model)
    ids = [card.vocabulary.encode(text).tolist() for text in texts]
    padded = [own + [0] * (9 - len(own)) for own in ids]
    native = ask("/v1/embeddings", model=model, input=texts, encoding_format="float")["data"]
    of_text = infer(model, [tensor("text", "BYTES", texts)], ["embeddings"])
    lengths = tensor("lengths", "INT64", [len(own) for own in ids])
    of_tokens = infer(model, [tensor("tokens", "INT32", padded), lengths])
    assert list(of_tokens) == ["embeddings"]
    for vectors in (of_text["embeddings"], of_tokens["embeddings"]):
        assert vectors.shape == (2, WIDTH)
        np.testing.assert_allclose(vectors, [own["embedding"] for own in native], **TOLERANCE)


def test_rows_of_tokens_count_whole_where_no_lengths_are_sent(ask, infer):
    native = ask("/v1/embeddings", model="masked-lm", input=[[3, 4], [5, 0]])["data"]
    vectors = infer("masked-lm", [tensor("tokens", "INT64", [[3, 4], [5, 0]])])["embeddings"]
    np.testing.assert_allclose(vectors, [own["embedding"] for own in native], **TOLERANCE)


def test_sources_are_decoded_as_ever(ask, infer):
    outputs = infer("reversal", [tensor("text", "BYTES", SOURCES)], max_new_tokens=5)
    native = ask("/v1/decode", inputs=SOURCES, max_new_tokens=5)["results"]
    assert outputs["output"].tolist() == [result["output"] for result in native]
    assert outputs["finish_reason"].tolist() == [result["finish_reason"] for result in native]
    assert outputs["output_lengths"].tolist() == [5, 5]
    for tokens, logprobs, result in zip(
        outputs["tokens"], outputs["logprobs"], native, strict=True
    ):
        assert tokens.tolist() == [token["token"] for token in result["tokens"]]
        told = [token["logprob"] for token in result["tokens"]]
        np.testing.assert_allclose(logprobs, told, **TOLERANCE)


def test_beams_and_the_alignment_are_told_where_they_are_named(ask, infer):
    names = ["beams", "beam_logprobs", "num_beams", "alignment"]
    outputs = infer("reversal", [tensor("text", "BYTES", SOURCES)], names, num_beams=3)
    native = ask("/v1/decode", inputs=SOURCES, num_beams=3, attention=True)["results"]
    assert list(outputs) == names
    for row, result in enumerate(native):
        beams = result["beams"]
        assert outputs["num_beams"][row] == len(beams)
        assert outputs["beams"][row].tolist() == [beam["output"] for beam in beams]
        told = [beam["logprob"] for beam in beams]
        np.testing.assert_allclose(outputs["beam_logprobs"][row], told, **TOLERANCE)
        found = result["alignment"]["source_positions"]
        assert outputs["alignment"][row].tolist() == found


def test_texts_are_continued_as_ever(ask, infer):
    options = {"max_tokens": 6, "temperature": 0.8, "seed": 4, "n": 2, "top_p": 0.9, "stop": "e"}
    texts = ["the ", "ti"]
    outputs = infer("causal-lm", [tensor("text", "BYTES", texts)], **options)
    native = ask("/v1/completions", prompt=texts, logprobs=0, **options)["choices"]
    assert outputs["output"].tolist() == [choice["text"] for choice in native]
    assert outputs["finish_reason"].tolist() == [choice["finish_reason"] for choice in native]
    assert outputs["normalized"].tolist() == ["the ", "the ", "ti", "ti"]
    for row, choice in enumerate(native):
        tokens = choice["logprobs"]["tokens"]
        size = outputs["output_lengths"][row]
        assert outputs["tokens"][row].tolist()[:size] == tokens
        assert set(outputs["tokens"][row].tolist()[size:]) <= {""}
        told = choice["logprobs"]["token_logprobs"]
        np.testing.assert_allclose(outputs["logprobs"][row, :size], told, **TOLERANCE)


def test_texts_that_are_not_continued_at_all_have_tokens_of_no_length(infer):
    outputs = infer("causal-lm", [tensor("text", "BYTES", ["the ", "ti"])], max_tokens=0)
    assert outputs["output"].tolist() == ["", ""]
    assert outputs["output_lengths"].tolist() == [0, 0]
    assert outputs["tokens"].shape == outputs["logprobs"].shape == (2, 0)


def test_texts_are_read_into_latents_and_back_as_ever(ask, infer):
    texts = ["the time", "abc"]
    names = ["latents", "input_lengths", "reconstruction", "normalized", "fidelity"]
    outputs = infer("perceiver", [tensor("text", "BYTES", texts)], names)
    native = ask("/v1/latents", inputs=texts, reconstruct=True)["results"]
    assert outputs["latents"].shape == (2, NUM_LATENTS, WIDTH)
    assert outputs["input_lengths"].tolist() == [8, 3]
    told = [result["latents"] for result in native]
    np.testing.assert_allclose(outputs["latents"], told, **TOLERANCE)
    for name in ("reconstruction", "normalized"):
        assert outputs[name].tolist() == [result[name] for result in native]
    np.testing.assert_allclose(outputs["fidelity"], [r["fidelity"] for r in native], **TOLERANCE)


def test_vectors_of_any_lengths_are_read_as_ever(ask, infer):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(2, 5, WIDTH)).astype(np.float32)
    native = ask("/v1/latents", features=[features[0].tolist(), features[1, :3].tolist()])
    lengths = tensor("lengths", "INT32", [5, 3])
    outputs = infer("perceiver", [lengths, tensor("features", "FP32", features)])
    assert list(outputs) == ["latents", "input_lengths"]
    assert outputs["input_lengths"].tolist() == [5, 3]
    told = [result["latents"] for result in native["results"]]
    np.testing.assert_allclose(outputs["latents"], told, **TOLERANCE)
    pooled = infer("perceiver", [lengths, tensor("features", "FP32", features)], ["embeddings"])
    np.testing.assert_allclose(pooled["embeddings"], outputs["latents"].mean(axis=1), **TOLERANCE)


def test_nothing_is_computed_that_is_not_wanted(client, infer, monkeypatch):
    ran = []
    for model in client.app.state.context.registry.models.values():
        run = model.engine.run
        monkeypatch.setattr(
            model.engine, "run", lambda name, rows, run=run: ran.append(name) or run(name, rows)
        )
    text = [tensor("text", "BYTES", ["the time"])]
    infer("perceiver", text)
    infer("perceiver", text, ["latents", "embeddings"])
    infer("perceiver", text, ["fidelity", "latents", "normalized"])
    infer("masked-lm", text, ["embeddings"])
    infer("masked-lm", [tensor("text", "BYTES", ["a<mask>"])])
    assert ran == ["latents", "latents", "latents+reconstruction", "embed", "fill-mask"]


@pytest.fixture
def two_versions():
    """A registry with two versions of one model, and without one that could not be loaded."""
    card = next(card for card in tiny.cards() if card.name == "reversal")
    first = fakes.fake_model(card)
    registry = Registry(PROGRAMS)
    registry._models["reversal"] = replace(first, card=replace(card, version=3))
    registry._others["reversal"] = {1: first}
    registry.failures["broken"] = "no model.json"
    registry.loading["slow"] = "3 of 7 shapes compiled"
    registry.is_loaded = True
    return registry


def test_a_model_is_found_in_its_default_version_or_the_one_that_is_named(two_versions):
    assert tensor_calls.find(two_versions, "reversal", None).card.version == 3
    for version in (1, 3):
        found = tensor_calls.find(two_versions, "reversal", str(version))
        assert found.card.version == version
        told = tensor_calls.metadata(two_versions, found)
        assert told.versions == ["1", "3"]
        pinned = two_versions.pinned(found)
        assert pinned.choose(None, "encoder-decoder") is found
        assert pinned.choose("reversal", "encoder-decoder") is found


@pytest.mark.parametrize("version", ["2", "01", "1.0", "-1", "", "latest", "\u0661", "9" * 5000])
def test_another_version_is_not_found(two_versions, version):
    with pytest.raises(
        ModelNotFound, match=r"^version: expected one of the versions \[1, 3\], got"
    ):
        tensor_calls.find(two_versions, "reversal", version)
    with pytest.raises(NotReady, match="broken could not be loaded"):
        tensor_calls.find(two_versions, "broken", version)
    with pytest.raises(ModelNotFound, match="nothing"):
        tensor_calls.find(two_versions, "nothing", version)


def test_the_index_tells_what_is_loaded_what_is_loading_and_what_is_broken(two_versions):
    told = tensor_calls.index(two_versions, ready=False)
    assert [(one.name, one.version, one.state, one.reason) for one in told] == [
        ("reversal", "1", "READY", ""),
        ("reversal", "3", "READY", ""),
        ("slow", None, "LOADING", "3 of 7 shapes compiled"),
        ("broken", None, "UNAVAILABLE", "no model.json"),
    ]
    assert tensor_calls.index(two_versions, ready=True) == told[:2]


def test_metadata_and_configuration_name_the_same_tensors(client, signatures):
    for name in signatures:
        told = client.get(f"/v2/models/{name}").json()
        config = client.get(f"/v2/models/{name}/config").json()
        assert config["max_batch_size"] == 0
        for tensors, configured in (("inputs", "input"), ("outputs", "output")):
            expected = [(own["name"], own["shape"]) for own in told[tensors]]
            assert [(own["name"], own["dims"]) for own in config[configured]] == expected
        for own in (*told["inputs"], *told["outputs"]):
            assert own["parameters"]["description"]
        assert {"timeout", "priority", "binary_data_output"} <= told["parameters"].keys()


def test_answers_have_the_shapes_that_the_metadata_tell(client, infer, signatures):
    texts = {"masked-lm": ["a<mask>"], "reversal": SOURCES[:1]}
    for name in signatures:
        told = client.get(f"/v2/models/{name}").json()["outputs"]
        shapes = {own["name"]: own["shape"] for own in told}
        given = texts.get(name, ["the time"])
        alone = [["embeddings"]] if name == "masked-lm" else []
        beams = {"num_beams": 2} if name == "reversal" else {}
        for names in ([n for n in shapes if [n] not in alone], *alone):
            parameters = {} if [names] == alone else beams
            outputs = infer(name, [tensor("text", "BYTES", given)], names, **parameters)
            assert list(outputs) == names
            for output, array in outputs.items():
                pairs = zip(array.shape, shapes[output], strict=True)
                assert all(wanted in (-1, size) for size, wanted in pairs), output


def test_a_text_that_is_longer_than_the_window_is_read_in_windows(ask, infer):
    text = "a" * WINDOW + "<mask>" + "b" * WINDOW
    outputs = infer("masked-lm", [tensor("text", "BYTES", [text])], ["filled", "positions"])
    native = ask("/v1/fill-mask", inputs=text)["results"][0]
    assert outputs["filled"].tolist() == [native["filled"]]
    assert outputs["positions"].tolist() == [[WINDOW]]

import base64
import dataclasses
import io
import re

import jax
import numpy as np
import pytest
from flax import nnx

from models.blocks import TransformerConfig
from models.checkpoint import ModelCard
from models.encoder import MaskedLanguageModel
from models.perceiver import PerceiverAutoencoder, PerceiverConfig
from service.engine import _Form
from service.tasks.latents import programs
from tests.service.tiny import MASKED, MAX_INPUT_LEN, NUM_LATENTS, WIDTH

PATH = "/v1/latents"
ATOL = 1e-5
TEXT = "The Time Machine, by H. G. Wells [1898]"
NORMALIZED = "the time machine by h g wells "


@pytest.fixture(scope="module")
def encode(call):
    """The latents that the model itself gives for vectors or token ids, without padding."""

    def encode(values):
        values = np.asarray(values)
        method = "encode_vectors" if values.ndim == 2 else "encode"
        dtype = np.float32 if values.ndim == 2 else np.int32
        lengths = np.array([len(values)], np.int32)
        return call("perceiver", method, values[None].astype(dtype), lengths).latents[0]

    return encode


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def pack(array, dtype="float32"):
    data = base64.b64encode(np.ascontiguousarray(array, f"<{dtype[0]}{int(dtype[5:]) // 8}"))
    return {"data": data.decode(), "dtype": dtype, "shape": list(array.shape)}


def latents(answer):
    return np.array([result["latents"] for result in answer["results"]], np.float32)


def test_the_answer_has_the_shape_of_the_contract(ask):
    answer = ask(PATH, inputs=TEXT)
    assert list(answer) == ["model", "version", "results", "usage"]
    assert (answer["model"], answer["version"]) == ("perceiver", 1)
    assert answer["usage"] == {"input_tokens": 30}
    (result,) = answer["results"]
    assert list(result) == ["latents", "shape", "length"]
    assert result["shape"] == [NUM_LATENTS, WIDTH]
    assert result["length"] == 30
    assert np.shape(result["latents"]) == (NUM_LATENTS, WIDTH)


def test_text_is_read_as_in_training(ask, encode):
    expected = encode([MASKED.symbols.index(c) for c in NORMALIZED])
    np.testing.assert_allclose(latents(ask(PATH, inputs=TEXT))[0], expected, atol=ATOL)
    assert ask(PATH, inputs=NORMALIZED) == ask(PATH, inputs=TEXT)


@pytest.mark.parametrize("length", [1, 30, MAX_INPUT_LEN])
def test_features_are_read_as_vectors(ask, encode, length):
    vectors = draw(length, WIDTH)
    answer = ask(PATH, features=vectors.tolist())
    assert answer["results"][0]["length"] == length
    assert answer["usage"] == {"input_tokens": length}
    np.testing.assert_allclose(latents(answer)[0], encode(vectors), atol=ATOL)


def test_features_are_the_same_in_every_form(ask):
    vectors = draw(9, WIDTH)
    expected = ask(PATH, features=vectors.tolist())
    forms = [
        [vectors.tolist()],
        pack(vectors),
        pack(vectors[None]),
        pack(vectors, "float64"),
        {key: value for key, value in pack(vectors).items() if key != "dtype"},
    ]
    for features in forms:
        assert ask(PATH, features=features) == expected


def test_whole_numbers_count_as_numbers(ask):
    whole = np.arange(2 * WIDTH).reshape(2, WIDTH)
    assert ask(PATH, features=whole.tolist()) == ask(PATH, features=whole.astype(float).tolist())


def test_ragged_features_in_one_request_are_answered_like_each_by_itself(ask):
    matrices = [draw(length, WIDTH, seed=length) for length in (3, 1, 128, 17, 3, 64, 2, 5, 80)]
    together = ask(PATH, features=[matrix.tolist() for matrix in matrices])
    assert [result["length"] for result in together["results"]] == [len(m) for m in matrices]
    for matrix, found in zip(matrices, latents(together), strict=True):
        alone = latents(ask(PATH, features=matrix.tolist()))[0]
        np.testing.assert_allclose(found, alone, atol=ATOL)


def test_stacked_features_in_base64_are_answered_like_each_by_itself(ask):
    stacked = draw(3, 5, WIDTH)
    together = latents(ask(PATH, features=pack(stacked)))
    assert len(together) == 3
    for matrix, found in zip(stacked, together, strict=True):
        np.testing.assert_allclose(found, latents(ask(PATH, features=pack(matrix)))[0], atol=ATOL)


def test_many_texts_are_answered_like_each_by_itself(ask):
    texts = [NORMALIZED[: 1 + index % 30] for index in range(20)]
    together = ask(PATH, inputs=texts)
    assert together["usage"] == {"input_tokens": sum(map(len, texts))}
    for text, found in zip(texts, latents(together), strict=True):
        np.testing.assert_allclose(found, latents(ask(PATH, inputs=text))[0], atol=ATOL)


def test_one_text_in_a_list_is_answered_like_the_text_itself(ask):
    assert ask(PATH, inputs=[TEXT]) == ask(PATH, inputs=TEXT)


def test_base64_holds_the_same_numbers_as_floats(ask):
    for body in ({"inputs": [TEXT, "a"]}, {"features": draw(4, WIDTH).tolist()}):
        plain = ask(PATH, encoding_format="float", **body)
        packed = ask(PATH, encoding_format="base64", **body)
        assert plain == ask(PATH, **body)
        for result, twin in zip(packed["results"], plain["results"], strict=True):
            values = np.frombuffer(base64.b64decode(result["latents"]), "<f4")
            values = values.reshape(result["shape"])
            np.testing.assert_array_equal(values, np.array(twin["latents"], np.float32))
            assert {**result, "latents": 0} == {**twin, "latents": 0}


def test_the_largest_features_still_give_finite_latents(ask):
    for scale in (1e6, -1e6):
        answer = ask(PATH, features=np.full((4, WIDTH), scale).tolist())
        assert np.isfinite(latents(answer)).all()
    mixed = np.where(draw(128, WIDTH) > 0, 1e6, -1e6)
    assert np.isfinite(latents(ask(PATH, features=mixed.tolist()))).all()


NPY = "application/x-npy"


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def post(client):
    """The answer to an array or a JSON object, as an array where ``accept`` asks for one."""

    def post(body, accept="*/*", **query):
        headers = {"Accept": accept}
        if isinstance(body, dict):
            answer = client.post(PATH, json=body, headers=headers, params=query)
        else:
            headers["Content-Type"] = NPY
            answer = client.post(PATH, content=saved(body), headers=headers, params=query)
        assert answer.status_code == 200, answer.text
        if answer.headers["content-type"] == NPY:
            return np.load(io.BytesIO(answer.content), allow_pickle=False)
        return answer.json()

    return post


def test_an_array_as_the_body_is_answered_like_the_same_numbers_in_json(post, ask):
    for vectors in (draw(9, WIDTH), draw(3, 5, WIDTH), draw(1, MAX_INPUT_LEN, WIDTH)):
        expected = ask(PATH, features=vectors.tolist())
        assert post(vectors) == expected
        assert post(np.asfortranarray(vectors)) == expected
        assert post(vectors, model="perceiver") == expected
        packed = ask(PATH, features=vectors.tolist(), encoding_format="base64")
        assert post(vectors, encoding_format="base64") == packed


@pytest.mark.parametrize(
    "accept", [NPY, "Application/X-NPY", f"text/html, {NPY};q=0.9, */*;q=0.1"], ids=str
)
def test_latents_are_answered_as_an_array_where_that_is_accepted(post, ask, accept):
    for body, is_one in [
        ({"inputs": TEXT}, True),
        ({"inputs": [TEXT]}, False),
        ({"inputs": [TEXT, "a", "ab" * 40]}, False),
        ({"features": draw(4, WIDTH).tolist()}, True),
        ({"features": [draw(n, WIDTH).tolist() for n in (3, 1, 80)]}, False),
        ({"features": pack(draw(2, 6, WIDTH))}, False),
        (draw(7, WIDTH), True),
        (draw(2, 7, WIDTH), False),
        (draw(1, 7, WIDTH), False),
    ]:
        array = post(body, accept)
        plain = latents(post(body))
        assert array.dtype == np.dtype("<f4")
        assert array.shape == (plain.shape[1:] if is_one else plain.shape)
        np.testing.assert_array_equal(array, plain[0] if is_one else plain)


def test_the_metrics_count_what_was_read_of_and_into_arrays(client, post):
    def counted():
        found = re.findall(r'^triwire_tokens_total\{.*task="latents".*\} (.*)$', metrics(), re.M)
        return sum(map(float, found))

    def metrics():
        return client.get("/metrics").text

    before = counted()
    post(draw(7, WIDTH), NPY)
    post(draw(2, 3, WIDTH))
    assert counted() - before == 7 + 6


def test_without_being_asked_for_no_array_is_answered(post):
    for accept in ("*/*", "application/json", "application/*", "text/html"):
        assert list(post({"inputs": TEXT}, accept)) == ["model", "version", "results", "usage"]


def test_text_is_read_back_from_the_latents_and_compared_character_by_character(ask, call):
    answer = ask(PATH, inputs=[TEXT, "a"], reconstruct=True)
    for result, text in zip(answer["results"], (NORMALIZED, "a"), strict=True):
        assert list(result) == [
            "latents",
            "shape",
            "length",
            "normalized",
            "reconstruction",
            "fidelity",
        ]
        tokens = np.array([[MASKED.symbols.index(c) for c in text]], np.int32)
        logits = call("perceiver", "__call__", tokens, np.array([len(text)], np.int32))
        expected = logits[0].argmax(axis=-1)
        assert result["normalized"] == text
        assert result["reconstruction"] == MASKED.decode(expected)
        assert result["fidelity"] == pytest.approx((expected == tokens[0]).mean())


def test_reading_back_changes_nothing_of_the_latents(ask):
    texts = [NORMALIZED[: 1 + index] for index in range(12)]
    plain = ask(PATH, inputs=texts)
    assert ask(PATH, inputs=texts, reconstruct=False) == plain
    with_text = ask(PATH, inputs=texts, reconstruct=True)
    assert with_text["usage"] == plain["usage"]
    np.testing.assert_allclose(latents(with_text), latents(plain), atol=ATOL)


def test_texts_are_read_back_like_each_by_itself(ask):
    texts = [NORMALIZED[index:] for index in range(12)]
    together = ask(PATH, inputs=texts, reconstruct=True)["results"]
    for text, result in zip(texts, together, strict=True):
        alone = ask(PATH, inputs=text, reconstruct=True)["results"][0]
        assert {**result, "latents": 0} == {**alone, "latents": 0}


SHORT, LONGEST = 1024, 8192


def temporary_bytes(model, function, *arguments):
    """What a compiled function needs beside its arguments and results."""
    form = _Form.of(model, np.float32)
    lowered = jax.jit(lambda leaves, *a: function(form.rebuild(leaves), *a)).lower(
        form.leaves, *arguments
    )
    return lowered.compile().memory_analysis().temp_size_in_bytes


def arguments(length, *trailing, dtype=np.int32):
    sizes = jax.ShapeDtypeStruct((1,), np.int32)
    return jax.ShapeDtypeStruct((1, length, *trailing), dtype), sizes


def book_programs():
    config = PerceiverConfig.book(len(MASKED.symbols))
    card = ModelCard(
        name="perceiver",
        version=1,
        created=0,
        wiring="perceiver",
        config=dataclasses.asdict(config),
        vocabulary=MASKED,
        limits={"min_len": 1, "max_len": config.max_input_len},
    )
    return config, programs(card)


@pytest.mark.parametrize("index", range(3), ids=["text", "text and back", "vectors"])
def test_memory_grows_with_the_length_and_not_with_its_square(index):
    """Eight times the length takes at most eight times the memory; a square would take 64.

    What is read in tiles takes no more for more of them.
    """
    config, found = book_programs()
    program = found[index]
    needed = [
        temporary_bytes(
            program.pack(PerceiverAutoencoder(config, rngs=nnx.Rngs(0))),
            program.function,
            *arguments(length, *program.ragged.trailing, dtype=program.ragged.dtype),
        )
        for length in (SHORT, LONGEST)
    ]
    assert 0 < needed[0] <= needed[1] <= LONGEST // SHORT * needed[0]


def test_the_measure_of_memory_sees_a_square_where_there_is_one():
    config = TransformerConfig(
        vocab_size=28, embed_dim=8, num_heads=1, num_layers=1, max_seq_len=LONGEST
    )
    needed = [
        temporary_bytes(
            MaskedLanguageModel(config, rngs=nnx.Rngs(0)),
            MaskedLanguageModel.__call__,
            *arguments(length),
        )
        for length in (SHORT, LONGEST)
    ]
    assert needed[1] > 30 * needed[0]


def test_attention_is_what_the_latents_read_and_sums_to_one_over_the_text(ask, call):
    (result,) = ask(PATH, inputs=TEXT, attention=True)["results"]
    attention = result["attention"]
    assert attention["source_tokens"] == list(NORMALIZED)
    assert attention["target_tokens"] == [f"latent {index}" for index in range(NUM_LATENTS)]
    assert attention["shape"] == [1, 2, NUM_LATENTS, len(NORMALIZED)]
    weights = np.array(attention["weights"])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=ATOL)
    tokens = MASKED.encode(NORMALIZED)[None]
    lengths = np.array([len(NORMALIZED)], np.int32)
    expected = call("perceiver", "encode", tokens, lengths).weights
    np.testing.assert_allclose(weights, expected, atol=ATOL)


def test_attention_changes_nothing_else(ask):
    plain = ask(PATH, inputs=[TEXT, "a"], reconstruct=True)
    told = ask(PATH, inputs=[TEXT, "a"], reconstruct=True, attention={"heads": "mean"})
    for result in told["results"]:
        assert result.pop("attention")["heads"] == ["mean"]
    assert told == plain


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"features": [[0.0] * WIDTH], "attention": True},
            422,
            "attention: expected none where features are sent, got some",
        ),
        (
            {"inputs": "a", "attention": {"heads": [2]}},
            422,
            "attention.heads: expected different numbers from 0 to 1, got [2]",
        ),
        (
            {"inputs": ["abcde " * 20] * 64, "attention": {"layers": [1]}},
            422,
            "attention.layers: expected different numbers from 0 to 0, got [1]",
        ),
    ],
)
def test_attention_that_cannot_be_had_is_refused(client, body, status, message):
    answer = client.post(PATH, json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, message)

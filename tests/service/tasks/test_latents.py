import base64

import numpy as np
import pytest

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

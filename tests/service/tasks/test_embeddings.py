import base64
import dataclasses

import numpy as np
import pytest

from service.tasks import PROGRAMS
from tests.service import tiny
from tests.service.tiny import MASKED, MAX_INPUT_LEN, WIDTH, WINDOW

PATH = "/v1/embeddings"
MODELS = ("masked-lm", "perceiver")
TEXT = "the time machi"
# Padding and batching change the order of float32 sums and nothing else.
ATOL = 1e-5


def token_ids(text):
    return [MASKED.symbols.index(c) for c in text]


def vectors(answer):
    return np.array([item["embedding"] for item in answer["data"]], np.float32)


@pytest.fixture(scope="module")
def states(call):
    """What is pooled for some token ids, without padding: states of the encoder, or latents."""

    def states(model, ids):
        tokens, lengths = np.array([ids], np.int32), np.array([len(ids)], np.int32)
        if model == "perceiver":
            return call(model, "encode", tokens, lengths).latents[0]
        return call(model, "encoder.__call__", tokens, lengths).states[0]

    return states


@pytest.mark.parametrize("model", MODELS)
def test_the_answer_has_the_shape_of_the_openai_schema(ask, model):
    answer = ask(PATH, model=model, input=[TEXT, "a"])
    assert list(answer) == ["object", "data", "model", "usage"]
    assert (answer["object"], answer["model"]) == ("list", model)
    assert answer["usage"] == {"prompt_tokens": 15, "total_tokens": 15}
    assert [list(item) for item in answer["data"]] == [["object", "index", "embedding"]] * 2
    assert [item["object"] for item in answer["data"]] == ["embedding"] * 2
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert vectors(answer).shape == (2, WIDTH)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", ["a", "the tim", "the time machine"])
def test_an_embedding_is_the_mean_of_what_the_model_makes_of_the_input_alone(
    ask, states, model, text
):
    """Requests are padded to a compiled shape; these states are not."""
    (found,) = vectors(ask(PATH, model=model, input=text))
    expected = np.mean(states(model, token_ids(text)), axis=0, dtype=np.float64)
    np.testing.assert_allclose(found, expected, atol=ATOL)


@pytest.mark.parametrize("model", MODELS)
def test_an_embedding_does_not_depend_on_what_shares_its_batch(ask, model):
    longest = WINDOW if model == "masked-lm" else MAX_INPUT_LEN
    texts = ["abc"[i % 3] * (1 + 5 * i % longest) for i in range(40)]
    together = vectors(ask(PATH, model=model, input=texts))
    for text, found in zip(texts, together, strict=True):
        alone = vectors(ask(PATH, model=model, input=text))[0]
        np.testing.assert_allclose(found, alone, atol=ATOL)
    assert len(np.unique(together.round(3), axis=0)) == len(set(texts))


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_input_gives_the_same_vectors(ask, model):
    texts = [TEXT, "machine"]
    ids = [token_ids(text) for text in texts]
    for inputs, single in ((texts, texts[0]), (ids, ids[0])):
        answer = ask(PATH, model=model, input=inputs)
        assert answer == ask(PATH, model=model, input=texts)
        first = ask(PATH, model=model, input=single)
        assert len(first["data"]) == 1
        np.testing.assert_allclose(vectors(first)[0], vectors(answer)[0], atol=ATOL)
    assert ask(PATH, model=model, input="The TIME, machi") == ask(
        PATH, model=model, input="the time machi"
    )


def test_the_mask_is_a_token_like_any_other(ask, states):
    ids = [*token_ids("tim"), MASKED.special_id("<mask>")]
    (found,) = vectors(ask(PATH, model="masked-lm", input=ids))
    np.testing.assert_allclose(found, states("masked-lm", ids).mean(axis=0), atol=ATOL)


@pytest.mark.parametrize("model", MODELS)
def test_base64_holds_the_same_numbers_as_little_endian_float32(ask, model):
    plain = ask(PATH, model=model, input=[TEXT, "a"], encoding_format="float")
    assert plain == ask(PATH, model=model, input=[TEXT, "a"])
    packed = ask(PATH, model=model, input=[TEXT, "a"], encoding_format="base64")
    for item, twin in zip(packed["data"], plain["data"], strict=True):
        values = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        np.testing.assert_array_equal(values, np.array(twin["embedding"], np.float32))
        assert {**item, "embedding": 0} == {**twin, "embedding": 0}


def test_what_the_openai_client_sends_is_answered(ask):
    """It asks for base64 where its user says nothing, and may send the width and a user."""
    body = {"model": "perceiver", "input": [TEXT], "encoding_format": "base64"}
    expected = ask(PATH, **body)
    assert ask(PATH, **body, dimensions=WIDTH, user="somebody") == expected
    assert ask(PATH, **body, dimensions=None, user=None) == expected


@pytest.mark.parametrize("name", MODELS)
def test_a_bundle_that_names_another_pooling_is_not_served_as_if_it_did_not(name):
    card = next(card for card in tiny.cards() if card.name == name)
    mean = dataclasses.replace(card, task=card.task | {"pooling": "mean"})
    assert [p.name for p in PROGRAMS[card.wiring](mean)] == [
        p.name for p in PROGRAMS[card.wiring](card)
    ]
    other = dataclasses.replace(card, task=card.task | {"pooling": "cls"})
    with pytest.raises(ValueError, match=r"pooling: expected one of \('mean',\), got 'cls'"):
        PROGRAMS[card.wiring](other)

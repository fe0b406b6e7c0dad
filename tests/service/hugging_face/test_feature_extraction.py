"""``feature_extraction`` and ``sentence_similarity`` of the client, against the native calls."""

import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError

from tests.service.tiny import MASKED, NUM_LATENTS, WIDTH, WINDOW

# Sums in other shapes differ in the order of additions and in nothing else.
ATOL = 1e-5
LONG = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def encoder(hub):
    return hub("masked-lm")


@pytest.fixture(scope="module")
def perceiver(hub):
    return hub("perceiver")


@pytest.fixture(scope="module")
def embedding(native):
    """The vectors of a native embeddings call."""

    def embedding(inputs, model="masked-lm"):
        data = native("embeddings", model=model, input=inputs)["data"]
        return np.array([item["embedding"] for item in data])

    return embedding


def close(one, other):
    np.testing.assert_allclose(one, other, atol=ATOL)


def test_an_encoder_gives_a_state_for_every_token(encoder, embedding):
    states = encoder.feature_extraction("the time")
    assert (states.shape, states.dtype) == ((8, WIDTH), np.float32)
    close(states.mean(axis=0), embedding("the time")[0])


def test_texts_of_one_length_give_one_array(encoder):
    states = encoder.feature_extraction(["time", "mach"])
    assert states.shape == (2, 4, WIDTH)
    close(states[1], encoder.feature_extraction("mach"))
    assert encoder.feature_extraction(["time"]).shape == (1, 4, WIDTH)


def test_a_perceiver_gives_its_latents_whatever_the_lengths(perceiver, native):
    texts = ["the time machine", "a"]
    latents = perceiver.feature_extraction(texts)
    results = native("latents", inputs=texts)["results"]
    assert latents.shape == (2, NUM_LATENTS, WIDTH)
    close(latents, [result["latents"] for result in results])
    close(perceiver.feature_extraction(texts[0]), latents[0])


def test_vectors_are_scaled_to_length_1_where_that_is_asked_for(encoder, perceiver):
    for model in (encoder, perceiver):
        plain = model.feature_extraction("time")
        scaled = model.feature_extraction("time", normalize=True)
        close(np.linalg.norm(scaled, axis=-1), 1)
        close(scaled * np.linalg.norm(plain, axis=-1, keepdims=True), plain)
        close(model.feature_extraction("time", normalize=False), plain)


def test_the_mask_token_is_read_as_a_mask(encoder, embedding):
    ids = [*MASKED.encode("tim"), MASKED.special_id("<mask>"), *MASKED.encode(" a")]
    states = encoder.feature_extraction("tim<mask> a")
    assert states.shape == (len(ids), WIDTH)
    close(states.mean(axis=0), embedding([int(token) for token in ids])[0])


def test_a_text_is_cut_only_where_that_is_asked_for(encoder):
    with pytest.raises(HfHubHTTPError, match=f"inputs: expected 1 to {WINDOW} symbols, got 26"):
        encoder.feature_extraction(LONG)
    for options, kept in (
        ({}, LONG[:WINDOW]),
        ({"truncation_direction": "right"}, LONG[:WINDOW]),
        ({"truncation_direction": "left"}, LONG[-WINDOW:]),
    ):
        states = encoder.feature_extraction(LONG, truncate=True, **options)
        close(states, encoder.feature_extraction(kept))
    close(encoder.feature_extraction("time", truncate=True), encoder.feature_extraction("time"))


def test_texts_of_different_lengths_are_cut_to_one_array_where_all_are_too_long(encoder):
    assert encoder.feature_extraction([LONG, LONG * 2], truncate=True).shape == (2, WINDOW, WIDTH)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (["time", "times"], {}, "inputs[1]: expected texts of as many tokens as the first one, 4"),
        ("", {}, f"inputs: expected 1 to {WINDOW} symbols, got 0"),
        ("a", {"dimensions": 3}, f"dimensions: expected {WIDTH}, the width of masked-lm, got 3"),
        ("a", {"prompt_name": "q"}, "prompt_name: expected null, as no model has prompts, got 'q'"),
        ("a", {"encoding_format": "base64"}, 'encoding_format: expected null or \\"float\\", as'),
        ("a", {"truncation_direction": "left"}, "truncation_direction: expected null where trunc"),
        ("a", {"truncate": "yes"}, "truncate: expected true or false, got 'yes'"),
    ],
)
def test_what_cannot_be_met_is_told_to_the_user(encoder, text, options, message):
    with pytest.raises(HfHubHTTPError) as caught:
        encoder.feature_extraction(text, **options)
    assert caught.value.response.status_code == 422
    assert message in str(caught.value)


def test_what_goes_without_saying_may_be_said(encoder):
    plain = encoder.feature_extraction("time")
    close(encoder.feature_extraction("time", dimensions=WIDTH, encoding_format="float"), plain)


@pytest.mark.parametrize("model", ["masked-lm", "perceiver"])
def test_similarity_is_the_cosine_of_embeddings(hub, embedding, model):
    others = ["the time", "space", "a"]
    told = hub(model).sentence_similarity("the time", others)
    source, *vectors = embedding(["the time", *others], model)
    expected = [
        source @ vector / np.linalg.norm(source) / np.linalg.norm(vector) for vector in vectors
    ]
    close(told, expected)
    close(told[0], 1)
    close(hub(f"{model}/sentence-similarity").sentence_similarity("the time", others), told)


@pytest.mark.parametrize(
    ("source", "sentences", "message"),
    [
        ("", ["a"], "inputs.source_sentence: expected 1 to 16 symbols, got 0"),
        ("a", ["a", ""], "inputs.sentences[1]: expected 1 to 16 symbols, got 0"),
        ("a", [], "inputs.sentences: expected at least 1 item"),
        ("a", ["a"] * 64, "inputs.sentences: expected 1 to 64 inputs, got 65"),
        (5, ["a"], "inputs.source_sentence: expected a string, got 5"),
    ],
)
def test_sentences_that_cannot_be_compared_are_told_by_name(encoder, source, sentences, message):
    with pytest.raises(HfHubHTTPError) as caught:
        encoder.sentence_similarity(source, sentences)
    assert message in str(caught.value)

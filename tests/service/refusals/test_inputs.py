"""Inputs and models that no call takes, whatever it does."""

import pytest

from tests.service.wrong import ABLE, GOOD, LONG, ONE_GOOD, TEXT


@pytest.mark.parametrize("path", ["/v1/fill-mask", "/v1/decode"])
def test_inputs_must_be_there(refuse, path):
    for body in ({}, {"model": None}):
        assert refuse(path, body, 422)["message"] == "inputs: expected a value, got none"


@pytest.mark.parametrize("path", GOOD)
def test_an_unknown_model_is_not_found_by_name(refuse, path):
    for name in ("nothing", "", "../..", "a\x00b", LONG):
        error = refuse(path, GOOD[path] | {"model": name}, 404)
        assert error["param"] == "model"
        listed = "expected one of ['causal-lm', 'masked-lm', 'perceiver', 'reversal'], got "
        assert listed in error["message"]


@pytest.mark.parametrize("path", GOOD)
def test_a_model_that_cannot_do_the_task_is_refused(refuse, path):
    for name in {"causal-lm", "masked-lm", "perceiver", "reversal"} - set(ABLE[path]):
        error = refuse(path, GOOD[path] | {"model": name}, 422)
        assert error["param"] == "model"
        assert f"can do this ({ABLE[path]}), got '{name}'" in error["message"]


@pytest.mark.parametrize("path", GOOD)
def test_no_texts_and_too_many_are_refused(refuse, path):
    field = TEXT[path]
    error = refuse(path, GOOD[path] | {field: []}, 422)
    assert error["message"] == f"{field}: expected 1 to 64 inputs, got 0"
    error = refuse(path, GOOD[path] | {field: [ONE_GOOD[path]] * 65}, 422)
    assert "expected " in error["message"]
    assert error["message"].endswith("got 65")
    error = refuse(path, GOOD[path] | {field: [""] * 60_000}, 422)
    assert error["message"].endswith("got 60000")


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("in_list", [False, True])
def test_an_over_long_text_is_refused_by_name_and_length(refuse, path, in_list):
    field = TEXT[path]
    value = [ONE_GOOD[path], LONG] if in_list else LONG
    error = refuse(path, GOOD[path] | {field: value}, 422)
    assert error["param"] == (f"{field}[1]" if in_list else field)
    assert "expected at most 8192 characters, got 100000" in error["message"]


@pytest.mark.parametrize("text", ["\u0000", "a\u0000b", "\u202e\ufeff", "\U0010ffff", "é" * 8192])
def test_odd_characters_are_text_like_any_other_where_the_model_normalises(client, text):
    for path, body in {
        "/v1/fill-mask": {"inputs": f"{text}<mask>"[-8192:]},
        "/v1/latents": {"inputs": text},
        "/v1/completions": {"prompt": text, "max_tokens": 1},
    }.items():
        assert client.post(path, json=body).status_code == 200

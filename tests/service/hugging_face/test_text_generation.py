"""``text_generation``, ``translation`` and ``summarization`` of the client, by native calls."""

import itertools

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, UnknownError, ValidationError

from service.errors import DeadlineExceeded, NonFiniteOutput
from tests.service.tiny import LETTERS, SOUNDS

SOURCE = "abcdefghijkl"
WORDS = ["".join(letters) for letters in itertools.product(LETTERS.symbols[:3], repeat=3)]
# Sums in other shapes differ in the order of additions and in nothing else.
ABS = 1e-5


@pytest.fixture(scope="module")
def decoder(hub):
    return hub("causal-lm")


@pytest.fixture(scope="module")
def reversal(hub):
    return hub("reversal")


@pytest.fixture(scope="module")
def sounds(pairs):
    """A client of the model of pairs, whose words it reads and whose sounds have names."""
    return InferenceClient(base_url=f"{pairs.client.base_url}/models/pairs")


@pytest.fixture(scope="module")
def completion(native):
    """The only choice of a native completion."""

    def completion(prompt, **options):
        (choice,) = native("completions", prompt=prompt, **options)["choices"]
        return choice

    return completion


@pytest.fixture(scope="module")
def spoken(pairs):
    """A word whose target has several sounds, with its native result."""
    results = pairs.ask(inputs=WORDS)["results"]
    return next(
        (word, result)
        for word, result in zip(WORDS, results, strict=True)
        if len(result["tokens"]) > 2
    )


def texts(tokens):
    return [token.text for token in tokens]


def test_a_decoder_goes_on_with_the_likeliest_tokens(decoder, completion):
    told = decoder.text_generation("the ", max_new_tokens=7)
    assert told == completion("the ", max_tokens=7, temperature=0)["text"]
    assert decoder.text_generation("the ", max_new_tokens=7, do_sample=False, seed=3) == told


def test_by_default_a_decoder_writes_100_tokens(decoder, completion):
    expected = completion("the ", max_tokens=100, temperature=0)["text"]
    assert decoder.text_generation("the ") == expected


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.7}, {"top_p": 0.9}, {"temperature": 1.5, "top_p": 0.5}, {"do_sample": True}],
    ids=str,
)
def test_the_same_seed_draws_what_the_native_call_draws(decoder, completion, options):
    told = decoder.text_generation("the ", max_new_tokens=9, seed=5, **options)
    named = {name: value for name, value in options.items() if name != "do_sample"}
    assert told == completion("the ", max_tokens=9, seed=5, **named)["text"]


def test_details_tell_of_every_token(decoder, completion):
    told = decoder.text_generation("the ", max_new_tokens=4, details=True, top_n_tokens=3)
    choice = completion("the ", max_tokens=4, temperature=0, logprobs=3)
    details, expected = told.details, choice["logprobs"]
    assert told.generated_text == choice["text"] == "".join(texts(details.tokens))
    assert (details.finish_reason, details.generated_tokens) == ("length", 4)
    assert (details.prefill, details.seed) == ([], None)
    assert [token.logprob for token in details.tokens] == pytest.approx(
        expected["token_logprobs"], abs=ABS
    )
    assert [not token.special for token in details.tokens] == [True] * 4
    # The client leaves these as they are in the JSON.
    for top, native_top in zip(details.top_tokens, expected["top_logprobs"], strict=True):
        assert [one["text"] for one in top] == list(native_top)[:3]
        assert [one["logprob"] for one in top] == pytest.approx(
            list(native_top.values())[:3], abs=ABS
        )
    for token, top in zip(details.tokens, details.top_tokens, strict=True):
        assert (token.id, token.text) == (top[0]["id"], top[0]["text"])


def test_the_seed_that_is_told_draws_the_text_again(decoder):
    told = decoder.text_generation("the ", max_new_tokens=9, temperature=1.5, details=True)
    again = decoder.text_generation(
        "the ", max_new_tokens=9, temperature=1.5, seed=told.details.seed
    )
    assert told.generated_text == again


def test_of_several_drawn_texts_the_likeliest_is_told_and_the_others_in_the_details(decoder):
    options = {"max_new_tokens": 5, "do_sample": True, "seed": 2, "best_of": 4}
    told = decoder.text_generation("the ", details=True, **options)

    def mean(sequence):
        return sum(token.logprob for token in sequence.tokens) / sequence.generated_tokens

    others = told.details.best_of_sequences
    assert len(others) == 3
    assert mean(told.details) >= max(map(mean, others))
    assert decoder.text_generation("the ", **options) == told.generated_text


def test_a_stop_ends_the_text_and_is_no_part_of_it(decoder, reversal):
    for model, prompt in ((decoder, "the "), (reversal, SOURCE)):
        whole = model.text_generation(prompt, max_new_tokens=12)
        stop = whole[3:5]
        told = model.text_generation(prompt, max_new_tokens=12, stop=[stop], details=True)
        assert (
            told.generated_text == whole[: whole.index(stop)] == "".join(texts(told.details.tokens))
        )
        assert told.details.finish_reason == "stop_sequence"
        assert told.details.generated_tokens == len(told.details.tokens)


def test_the_prompt_comes_first_where_that_is_asked_for_as_it_was_read(decoder):
    told = decoder.text_generation("The -- ", max_new_tokens=3)
    full = decoder.text_generation("The -- ", max_new_tokens=3, return_full_text=True)
    assert full == "the " + told


def test_only_the_last_tokens_are_read_where_that_is_asked_for(decoder):
    long = "The time traveller, for so it will be convenient to speak of him"
    with pytest.raises(ValidationError, match="inputs: expected 0 to 15 symbols, got"):
        decoder.text_generation(long, max_new_tokens=3)
    told = decoder.text_generation(long, max_new_tokens=3, truncate=15)
    assert told == decoder.text_generation("to speak of him", max_new_tokens=3)
    assert told == decoder.text_generation("to speak of him", max_new_tokens=3, truncate=99)


def test_an_encoder_decoder_writes_what_the_native_call_does(reversal, native):
    (result,) = native("decode", inputs=SOURCE)["results"]
    told = reversal.text_generation(SOURCE, details=True)
    assert told.generated_text == result["output"] == reversal.text_generation(SOURCE)
    assert (told.details.finish_reason, told.details.generated_tokens) == ("eos_token", 12)
    assert texts(told.details.tokens) == [token["token"] for token in result["tokens"]]
    assert [token.logprob for token in told.details.tokens] == pytest.approx(
        [token["logprob"] for token in result["tokens"]], abs=ABS
    )
    cut = reversal.text_generation(SOURCE, details=True, max_new_tokens=3)
    assert (cut.generated_text, cut.details.finish_reason) == (result["output"][:3], "length")


def test_a_stream_gives_every_token_and_the_text_with_the_last(reversal):
    plain = reversal.text_generation(SOURCE, details=True)
    assert "".join(reversal.text_generation(SOURCE, stream=True)) == plain.generated_text
    *events, last = reversal.text_generation(SOURCE, stream=True, details=True)
    told = [event.token for event in (*events, last)]
    assert texts(told) == texts(plain.details.tokens)
    assert [token.id for token in told] == [token.id for token in plain.details.tokens]
    assert [event.index for event in (*events, last)] == list(range(1, 13))
    assert [(event.generated_text, event.details) for event in events] == [(None, None)] * 11
    assert last.generated_text == plain.generated_text
    assert (last.details.finish_reason, last.details.generated_tokens) == ("eos_token", 12)
    assert (last.details.input_length, last.details.seed) == (12, None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_new_tokens": 40},
        {"temperature": 1.2, "seed": 4},
        {"return_full_text": True, "truncate": 3},
        {"top_n_tokens": 2},
    ],
    ids=str,
)
def test_a_decoder_streams_what_it_writes(decoder, options):
    options = {"max_new_tokens": 9} | options
    plain = decoder.text_generation("the time ", details=True, **options)
    events = list(decoder.text_generation("the time ", stream=True, details=True, **options))
    last = events[-1]
    assert [event.token.id for event in events] == [token.id for token in plain.details.tokens]
    assert [event.token.logprob for event in events] == pytest.approx(
        [token.logprob for token in plain.details.tokens], abs=ABS
    )
    assert [event.index for event in events] == list(range(1, options["max_new_tokens"] + 1))
    assert last.generated_text == plain.generated_text
    assert (last.details.finish_reason, last.details.seed) == ("length", options.get("seed"))
    assert last.details.generated_tokens == len(events)
    assert last.details.input_length == options.get("truncate", 9)
    if "top_n_tokens" in options:
        told = [[token.text for token in event.top_tokens] for event in events]
        assert told == [[one["text"] for one in top] for top in plain.details.top_tokens]


def test_a_stream_ends_at_a_stop_like_a_plain_answer(reversal, decoder):
    for model, prompt in ((reversal, SOURCE), (decoder, "the ")):
        whole = model.text_generation(prompt, max_new_tokens=12)
        for stop in (whole[5:8], whole[0], whole[11:]):
            options = {"max_new_tokens": 12, "stop": [stop]}
            plain = model.text_generation(prompt, details=True, **options)
            *_, last = model.text_generation(prompt, stream=True, details=True, **options)
            streamed = "".join(model.text_generation(prompt, stream=True, **options))
            assert streamed == last.generated_text == plain.generated_text
            assert last.details.finish_reason == "stop_sequence"
            assert last.details.generated_tokens == len(plain.details.tokens)


def test_names_of_symbols_come_with_what_separates_them(sounds, spoken):
    word, result = spoken
    told = sounds.text_generation(word, details=True)
    assert told.generated_text == result["output"] == "".join(texts(told.details.tokens))
    assert [SOUNDS.tokens[token.id] for token in told.details.tokens] == [
        token["token"] for token in result["tokens"]
    ]
    assert "".join(sounds.text_generation(word, stream=True)) == result["output"]


def test_beams_are_searched_where_they_are_asked_for(pairs, spoken):
    word, _ = spoken
    (result,) = pairs.ask(inputs=word, num_beams=4)["results"]
    for body in ({"parameters": {"num_beams": 4}}, {"parameters": {"num_beams": 4, "stop": ["#"]}}):
        answer = pairs.client.post("/models/pairs", json={"inputs": word} | body)
        assert answer.json() == [{"generated_text": result["output"]}]


def test_translation_and_summarization_have_the_text_under_their_own_names(hub, reversal):
    expected = reversal.text_generation(SOURCE)
    translation = hub("reversal/translation").translation(SOURCE)
    assert translation.translation_text == expected
    cut = hub("reversal/translation").translation(
        SOURCE, generate_parameters={"max_new_tokens": 3}, truncation="do_not_truncate"
    )
    assert cut.translation_text == expected[:3]
    assert hub("reversal/summarization").summarization(SOURCE).summary_text == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"top_k": 3},
            "parameters.top_k: expected null, as only top_p narrows what is drawn, got 3",
        ),
        ({"typical_p": 0.5}, "parameters.typical_p: expected null or 1, as"),
        ({"repetition_penalty": 1.2}, "parameters.repetition_penalty: expected null or 1, as"),
        ({"frequency_penalty": 0.5}, "parameters.frequency_penalty: expected null or 0, as"),
        ({"watermark": True}, "parameters.watermark: expected null or false, as no text is marked"),
        ({"adapter_id": "a"}, "parameters.adapter_id: expected null, as no model has adapters"),
        (
            {"grammar": {"type": "regex", "value": "a"}},
            "parameters.grammar: expected null, as no grammar is served",
        ),
        (
            {"details": True, "decoder_input_details": True},
            "parameters.decoder_input_details: expected null or false, as",
        ),
        ({"temperature": 3.0}, "parameters.temperature: expected at most 2"),
        ({"top_p": 0.0}, "parameters.top_p: expected more than 0"),
        ({"max_new_tokens": 0}, "parameters.max_new_tokens: expected at least 1, got 0"),
        ({"max_new_tokens": 2000}, "parameters.max_new_tokens: expected at most 1024, got 2000"),
        ({"stop": [""]}, "parameters.stop[0]: expected at least 1 character, got ''"),
        ({"stop": ["a"] * 5}, "parameters.stop: expected at most 4 items"),
        ({"best_of": 2}, "parameters.best_of: expected null or 1 unless do_sample"),
        ({"top_n_tokens": 2}, "parameters.top_n_tokens: expected null or 0 unless details"),
        (
            {"do_sample": False, "temperature": 0.5},
            "parameters.do_sample: expected null or true where temperature or top_p is given",
        ),
        (
            {"do_sample": True, "temperature": 0.0},
            "parameters.temperature: expected more than 0 where do_sample is true",
        ),
    ],
    ids=str,
)
def test_what_a_decoder_cannot_meet_is_told_to_the_user(decoder, options, message):
    with pytest.raises(ValidationError) as caught:
        decoder.text_generation("the ", **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"do_sample": True}, "null or false"),
        ({"temperature": 0.5}, "null or 0"),
        ({"top_p": 0.5}, "null or 1"),
        ({"best_of": 2}, "null or 1"),
        ({"details": True, "top_n_tokens": 2}, "null or 0"),
        ({"return_full_text": True}, "null or false"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_only_a_decoder_does_is_refused_by_others(reversal, options, shown, stream):
    (name, _) = list(options.items())[-1]
    with pytest.raises(ValidationError) as caught:
        reversal.text_generation(SOURCE, stream=stream, **options)
    wanted = f"parameters.{name}: expected {shown} for an encoder-decoder, which reversal is, got "
    assert wanted in str(caught.value)


def test_what_says_nothing_new_is_taken(decoder, reversal):
    neutral = {
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "watermark": False,
        "best_of": 1,
        "return_full_text": False,
    }
    assert decoder.text_generation("the ", max_new_tokens=3, **neutral) == decoder.text_generation(
        "the ", max_new_tokens=3
    )
    assert reversal.text_generation(SOURCE, **neutral) == reversal.text_generation(SOURCE)


@pytest.mark.parametrize("stream", [False, True])
def test_a_source_that_cannot_be_decoded_is_told_to_the_user(reversal, stream):
    with pytest.raises(ValidationError, match=r"inputs: expected symbols of the alphabet .* 'z'"):
        reversal.text_generation("abcdefghijkz", stream=stream)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("translation", {"src_lang": "en", "tgt_lang": "fr"}, "parameters.src_lang: expected null"),
        ("translation", {"truncation": "only_first"}, 'null or \\"do_not_truncate\\", as no text'),
        (
            "translation",
            {"generate_parameters": {"num_beams": 9}},
            "parameters.generate_parameters.num_beams: expected at most 8, got 9",
        ),
        (
            "summarization",
            {"generate_parameters": {"top_k": 9}},
            "parameters.generate_parameters.top_k: expected one of the fields max_new_tokens",
        ),
    ],
)
def test_what_a_translation_cannot_meet_is_told_to_the_user(hub, task, options, message):
    with pytest.raises(HfHubHTTPError) as caught:
        getattr(hub(f"reversal/{task}"), task)(SOURCE, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NonFiniteOutput("go on: NaN, says the secret log"), "the model gave no usable answer"),
        (DeadlineExceeded("the answer was not ready in time"), "the answer was not ready in time"),
        (RuntimeError("the secret of the parameters"), "an internal error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_in_the_middle_of_a_stream_is_told_to_the_user(
    pairs, sounds, spoken, monkeypatch, error, told
):
    run, seen = pairs.engine.run, []

    def fail(name, rows):
        if name == "go on":
            raise error
        return run(name, rows)

    monkeypatch.setattr(pairs.engine, "run", fail)
    with pytest.raises(UnknownError, match=told) as caught:
        seen.extend(sounds.text_generation(spoken[0], stream=True))
    assert "secret" not in str(caught.value)

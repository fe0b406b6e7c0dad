"""``openai.OpenAI`` and ``AsyncOpenAI``, as they are published, against this service."""

import asyncio
import base64
import threading

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from service.errors import NonFiniteOutput, NotReady, Overloaded
from tests.service import fakes
from tests.service.fakes import PATIENCE_S, wait_until
from tests.service.tiny import CAUSAL, MASKED, WIDTH

MODEL = "causal-lm"
EMBEDDERS = ["masked-lm", "perceiver"]
KEY = "a-key-of-the-service"
# What a completion may be asked for, by the names that the client gives its arguments.
COMPLETIONS = [
    {"prompt": "the time"},
    {"prompt": None},
    {"prompt": ["the", "time", ""], "n": 2},
    {"prompt": [5, 6, 7]},
    {"prompt": [[5, 6, 7], [8], []]},
    {"prompt": "a", "max_tokens": 40, "temperature": 0, "logprobs": 5},
    {"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 3},
    {"prompt": "the", "max_tokens": 9, "echo": True, "logprobs": 0, "stop": ["e", "qq"]},
    {"prompt": "a", "temperature": 1.7, "top_p": 0.5, "n": 3, "stop": "th"},
    {"prompt": "a", "n": 2, "best_of": 5, "user": "someone"},
    {
        "prompt": "a",
        **dict.fromkeys(["best_of", "echo", "frequency_penalty", "logit_bias", "logprobs"]),
        **dict.fromkeys(["max_tokens", "n", "presence_penalty", "stop", "suffix"]),
        **dict.fromkeys(["temperature", "top_p"]),
    },
    {
        "prompt": "a",
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "logit_bias": {},
        "suffix": "",
    },
]


@pytest.fixture(scope="module")
def address(live_service):
    return str(live_service.client.base_url).rstrip("/") + "/v1"


@pytest.fixture
def client(address):
    with OpenAI(base_url=address, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def with_async(address):
    """What a coroutine function of an asynchronous client gives."""

    def run(act):
        async def with_client():
            async with AsyncOpenAI(base_url=address, api_key="unused", max_retries=0) as client:
                return await act(client)

        return asyncio.run(with_client())

    return run


def plain(answer):
    """An answer as JSON, but for what no two share."""
    fields = answer.model_dump(mode="json", exclude_unset=True)
    return {name: value for name, value in fields.items() if name not in ("id", "created")}


def gather(chunks):
    """The text and the reason of the end of every choice of a stream, by index."""
    texts, reasons = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts.keys() == reasons.keys()
    return [(texts[index], reasons[index]) for index in sorted(texts)]


def told(completion):
    return [(choice.text, choice.finish_reason) for choice in completion.choices]


def test_every_model_is_listed_and_can_be_retrieved(client, with_async):
    models = list(client.models.list())
    assert {model.id for model in models} == {MODEL, "reversal", *EMBEDDERS}
    for model in models:
        assert (model.object, model.owned_by) == ("model", "triwire")
        assert client.models.retrieve(model.id) == model
    assert client.models.retrieve(MODEL).wiring == "decoder"

    async def listed(client):
        return [model.id async for model in client.models.list()]

    assert with_async(listed) == [model.id for model in models]


@pytest.mark.parametrize("model", EMBEDDERS)
@pytest.mark.parametrize("given", ["the time", ["a", "the time machi"], [3, 4, 5], [[3, 4], [5]]])
def test_embeddings_are_those_of_the_native_call_however_they_travel(
    client, live_service, model, given
):
    native = live_service.ask("/v1/embeddings", model=model, input=given)
    expected = np.array([item["embedding"] for item in native["data"]], np.float32)
    for options in ({}, {"encoding_format": "float"}, {"dimensions": WIDTH, "user": "someone"}):
        answer = client.embeddings.create(model=model, input=given, **options)
        assert answer.model == model
        assert answer.usage.model_dump() == native["usage"]
        assert [item.index for item in answer.data] == list(range(len(expected)))
        got = np.array([item.embedding for item in answer.data], np.float32)
        np.testing.assert_array_equal(got, expected)
    raw = client.embeddings.create(model=model, input=given, encoding_format="base64")
    first = np.frombuffer(base64.b64decode(raw.data[0].embedding), "<f4")
    np.testing.assert_array_equal(first, expected[0])


def test_embeddings_come_to_an_asynchronous_client_too(client, with_async):
    texts = ["a", "the time", "machine"]

    async def embed(client):
        answers = [client.embeddings.create(model="perceiver", input=text) for text in texts]
        return [answer.data[0].embedding for answer in await asyncio.gather(*answers)]

    together = client.embeddings.create(model="perceiver", input=texts)
    expected = [item.embedding for item in together.data]
    np.testing.assert_allclose(with_async(embed), expected, atol=1e-5)


@pytest.mark.parametrize("options", COMPLETIONS, ids=str)
def test_a_completion_is_that_of_the_native_call(client, with_async, live_service, options):
    body = {"model": MODEL, "seed": 3} | options
    native = live_service.ask("/v1/completions", **body)
    expected = {name: value for name, value in native.items() if name not in ("id", "created")}
    completion = client.completions.create(**body)
    assert plain(completion) == expected
    assert completion.id.startswith("cmpl-")
    assert completion._request_id

    async def complete(client):
        return plain(await client.completions.create(**body))

    assert with_async(complete) == expected


@pytest.mark.parametrize(
    "options", [options for options in COMPLETIONS if not options.get("best_of")], ids=str
)
def test_a_streamed_completion_is_the_whole_one_in_pieces(client, with_async, options):
    body = {"model": MODEL, "seed": 3} | options
    expected = told(client.completions.create(**body))
    assert gather(client.completions.create(**body, stream=True)) == expected

    async def stream(client):
        chunks = await client.completions.create(**body, stream=True)
        return gather([chunk async for chunk in chunks])

    assert with_async(stream) == expected


def test_a_stream_tells_its_usage_last_where_that_is_asked_for(client):
    body = {"model": MODEL, "prompt": ["a", "the"], "n": 2, "max_tokens": 7, "seed": 3}
    usage = client.completions.create(**body).usage
    options = {"include_usage": True, "include_obfuscation": False}
    *chunks, last = client.completions.create(**body, stream=True, stream_options=options)
    assert last.choices == []
    assert last.usage == usage
    assert all(chunk.usage is None for chunk in chunks)


def test_the_log_probabilities_of_a_stream_are_those_of_the_whole(client):
    body = {"model": MODEL, "prompt": "the", "max_tokens": 20, "seed": 3}
    body |= {"logprobs": 2, "echo": True}
    whole = client.completions.create(**body).choices[0].logprobs
    pieces = [chunk.choices[0].logprobs for chunk in client.completions.create(**body, stream=True)]
    for name in ("tokens", "text_offset"):
        got = [item for piece in pieces if piece for item in getattr(piece, name)]
        assert got == getattr(whole, name)
    got = [item for piece in pieces if piece for item in piece.token_logprobs]
    np.testing.assert_allclose(got, whole.token_logprobs, atol=1e-4)


@pytest.fixture
def stuck(live_service, monkeypatch):
    """Lets the model stop in the middle of its work from the ``number``-th part or answer on."""
    opened = threading.Event()

    def stick(number):
        engine = live_service.engine(MODEL)
        run, names = engine.run, []

        def wait(name, rows):
            names.append(name)
            if sum(name in ("generate", "continue") for name in names) >= number:
                assert opened.wait(PATIENCE_S)
            return run(name, rows)

        monkeypatch.setattr(engine, "run", wait)

    yield stick
    opened.set()


def test_a_client_that_leaves_a_stream_stops_the_work(client, live_service, stuck):
    lifecycle = live_service.app.state.lifecycle
    stuck(2)
    with client.completions.create(model=MODEL, prompt="a", max_tokens=99, stream=True) as stream:
        assert next(iter(stream)).choices[0].text
        assert lifecycle.num_requests == 1
    wait_until(lambda: lifecycle.num_requests == 0)


# What is sent, the exception, and what it says of the field and of what was expected.
WRONG = [
    ({"model": "nothing"}, openai.NotFoundError, "model", "model_not_found", "expected one of"),
    ({"model": "perceiver"}, openai.UnprocessableEntityError, "model", "invalid_value", "causal"),
    ({"prompt": "x" * 99}, openai.UnprocessableEntityError, "prompt", "invalid_value", "symbols"),
    ({"prompt": [999]}, openai.UnprocessableEntityError, "prompt[0]", "invalid_value", "0 to 27"),
    *(
        ({name: value}, openai.UnprocessableEntityError, name, "invalid_value", expected)
        for name, value, expected in (
            ("n", 0, "expected at least 1, got 0"),
            ("best_of", 21, "expected at most 20, got 21"),
            ("temperature", 3, "expected at most 2, got 3"),
            ("top_p", 0, "expected more than 0, got 0"),
            ("max_tokens", -1, "expected at least 0, got -1"),
            ("logprobs", 6, "expected at most 5, got 6"),
            ("stop", list("abcde"), "expected at most 4 strings"),
            ("stop", "", "none of them empty"),
            ("seed", 2**63, "expected less than"),
            ("frequency_penalty", 0.5, "expected 0 or null, got 0.5"),
            ("presence_penalty", -2, "expected 0 or null, got -2"),
            ("logit_bias", {"5": -100}, "expected {} or null, got {...}"),
            ("suffix", "the end", "expected \"\" or null, got 'the end'"),
            ("stream_options", {"include_usage": True}, "expected null where stream is not true"),
            ("extra_body", {"top_k": 5}, "expected one of the fields"),
        )
    ),
]


@pytest.mark.parametrize(("options", "kind", "param", "code", "expected"), WRONG, ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_is_wrong_is_an_exception_of_its_kind_that_says_what(
    client, options, kind, param, code, expected, stream
):
    if stream and "stream_options" in options:
        return
    body = {"model": MODEL, "prompt": "a", "stream": stream} | options
    with pytest.raises(kind) as caught:
        client.completions.create(**body)
    error = caught.value
    assert expected in error.message
    assert error.param == ("top_k" if param == "extra_body" else param)
    assert error.code == code
    assert error.type == "invalid_request_error"
    assert error.request_id == error.body["request_id"]


@pytest.mark.parametrize(
    ("options", "kind", "param", "expected"),
    [
        ({"model": "nothing"}, openai.NotFoundError, "model", "expected one of"),
        ({"input": ""}, openai.UnprocessableEntityError, "input", "1 to 16 symbols, got 0"),
        ({"input": []}, openai.UnprocessableEntityError, "input", "1 to 64 inputs, got 0"),
        ({"input": [[]]}, openai.UnprocessableEntityError, "input[0]", "1 to 16 symbols"),
        ({"input": ["a", [1]]}, openai.UnprocessableEntityError, "input", "items of one kind"),
        ({"dimensions": 3}, openai.UnprocessableEntityError, "dimensions", "the width of"),
        ({"encoding_format": "hex"}, openai.UnprocessableEntityError, "encoding_format", "'float'"),
    ],
    ids=str,
)
def test_embeddings_say_what_is_wrong_too(client, options, kind, param, expected):
    body = {"model": "masked-lm", "input": "a"} | options
    with pytest.raises(kind, match=expected) as caught:
        client.embeddings.create(**body)
    assert caught.value.param == param


def test_what_is_no_json_is_a_bad_request(client):
    with pytest.raises(openai.BadRequestError, match="expected a body of JSON in UTF-8"):
        client.post(
            "/completions",
            cast_to=object,
            content=b"{",
            options={"headers": {"Content-Type": "application/json"}},
        )


@pytest.mark.parametrize(
    ("call", "kind", "status"),
    [
        (lambda client: client.models.retrieve("nothing"), openai.NotFoundError, 404),
        (lambda client: client.models.delete(MODEL), openai.APIStatusError, 405),
        (
            lambda client: client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "a"}]
            ),
            openai.NotFoundError,
            404,
        ),
        (lambda client: client.files.list(), openai.NotFoundError, 404),
    ],
    ids=["a model that is not there", "deleting a model", "chat", "files"],
)
def test_calls_that_are_not_served_say_so(client, call, kind, status):
    with pytest.raises(kind) as caught:
        call(client)
    assert caught.value.status_code == status
    assert caught.value.message
    assert caught.value.code in ("model_not_found", "no_such_call")


def test_without_a_right_key_every_call_is_an_authentication_error():
    app = fakes.fake_app(api_keys=[KEY])
    with fakes.listening(app) as http:
        address = str(http.base_url).rstrip("/") + "/v1"
        with OpenAI(base_url=address, api_key="another", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="got another one") as caught:
                client.models.list()
            assert caught.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                client.completions.create(model=MODEL, prompt="a", stream=True)
        with OpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["reversal"]


@pytest.fixture
def failing(live_service, monkeypatch):
    """Lets the queue fail as many times as there are errors, then work."""

    def fail(*errors):
        batcher = live_service.app.state.context.batcher
        submit, left = batcher.submit, list(errors)

        async def flaky(*arguments):
            if left:
                raise left.pop(0)
            return await submit(*arguments)

        monkeypatch.setattr(batcher, "submit", flaky)

    return fail


@pytest.fixture
def naps(monkeypatch):
    """How long clients have waited before they tried again; they do not really wait."""
    naps = []

    async def sleep(seconds):
        naps.append(seconds)

    monkeypatch.setattr("openai._base_client.time.sleep", naps.append)
    monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
    return naps


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_full_queue_and_a_load_are_waited_for_as_long_as_the_service_says(
    address, failing, naps, stream
):
    body = {"model": MODEL, "prompt": "a", "seed": 3, "stream": stream}
    failing(Overloaded("the queue is full"), NotReady("models are still loading"))
    with OpenAI(base_url=address, api_key="unused") as client:
        answer = client.completions.create(**body)
        text = gather(answer)[0][0] if stream else answer.choices[0].text
    assert len(text) > 1
    assert naps == [1.0, 1.0]


def test_an_asynchronous_client_waits_as_well(address, failing, naps):
    failing(Overloaded("the queue is full"))

    async def embed():
        async with AsyncOpenAI(base_url=address, api_key="unused") as client:
            return await client.embeddings.create(model="perceiver", input="a")

    assert len(asyncio.run(embed()).data[0].embedding) == WIDTH
    assert naps == [1.0]


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Overloaded("the queue is full"), openai.RateLimitError, "queue_full"),
        (NotReady("models are still loading"), openai.InternalServerError, "not_ready"),
        (NonFiniteOutput("secret"), openai.InternalServerError, "non_finite_output"),
        (RuntimeError("secret"), openai.InternalServerError, "internal_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_pass_is_told_in_the_end(client, failing, error, kind, code):
    failing(error)
    with pytest.raises(kind) as caught:
        client.completions.create(model=MODEL, prompt="a")
    assert caught.value.code == code
    assert "secret" not in caught.value.message
    assert caught.value.response.headers.get("retry-after") == (
        "1" if code in ("queue_full", "not_ready") else None
    )


def test_what_goes_wrong_in_a_stream_is_an_exception_in_the_middle_of_it(
    client, live_service, monkeypatch
):
    engine = live_service.engine(MODEL)
    run, names = engine.run, []

    def fail_later(name, rows):
        names.append(name)
        if names.count("continue") == 2:
            raise NonFiniteOutput("secret")
        return run(name, rows)

    monkeypatch.setattr(engine, "run", fail_later)
    seen = []
    with pytest.raises(openai.APIError, match="no usable answer") as caught:
        seen.extend(client.completions.create(model=MODEL, prompt="a", seed=3, stream=True))
    assert caught.value.code == "non_finite_output"


def test_a_client_that_does_not_wait_any_longer_frees_the_queue(client, live_service, stuck):
    lifecycle = live_service.app.state.lifecycle
    stuck(1)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).completions.create(model=MODEL, prompt="a")
    wait_until(lambda: lifecycle.num_requests == 0)


def test_ids_are_those_of_the_alphabet_that_a_model_tells(client):
    """How a client comes by token ids: 0 is what the alphabet lacks, then its symbols in order."""
    alphabet = client.models.retrieve(MODEL).alphabet
    ids = [1 + alphabet.index(character) for character in "the time"]
    assert [CAUSAL.tokens[index] for index in ids] == list("the time")
    assert CAUSAL.symbols == MASKED.symbols
    by_ids = client.completions.create(model=MODEL, prompt=ids, seed=3)
    by_text = client.completions.create(model=MODEL, prompt="the time", seed=3)
    assert told(by_ids) == told(by_text)

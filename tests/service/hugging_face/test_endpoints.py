"""Addresses of the protocol: what a model does, whether it is there, and who may ask."""

import asyncio

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError

from service.tasks.hugging_face.offers import TASKS
from tests.service.fakes import fake_app, listening
from tests.service.tiny import WINDOW

MODELS = {
    "masked-lm": ["fill-mask", "feature-extraction", "sentence-similarity"],
    "perceiver": ["feature-extraction", "sentence-similarity"],
    "causal-lm": ["text-generation"],
    "reversal": ["text-generation", "translation", "summarization"],
}
ADDRESSES = [f"{name}{tail}" for name, tasks in MODELS.items() for tail in ("", f"/{tasks[0]}")]
SOURCE = "abcdefghijkl"
# A call of the client for each task, and what is sent to a model that cannot do it.
CALLS = {
    "fill-mask": lambda client: client.fill_mask("a<mask>"),
    "feature-extraction": lambda client: client.feature_extraction("a"),
    "sentence-similarity": lambda client: client.sentence_similarity("a", ["b"]),
    "text-generation": lambda client: client.text_generation("a", max_new_tokens=1),
    "translation": lambda client: client.translation(SOURCE),
    "summarization": lambda client: client.summarization(SOURCE),
}


def test_every_task_has_a_call_that_is_tried_here():
    assert set(CALLS) == {task for tasks in TASKS.values() for task in tasks}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_client_learns_what_a_model_does_and_that_it_is_there(hub, address):
    client = hub(address, provider="hf-inference")
    assert client.health_check() is True
    info = client.get_endpoint_info()
    name = address.partition("/")[0]
    assert (info["model_id"], info["model_version"]) == (name, 1)
    assert info["tasks"] == MODELS[name]
    assert info["model_pipeline_tag"] == MODELS[name][0]
    assert info["mask_token"] == ("<mask>" if name in ("masked-lm", "perceiver") else None)
    assert info["max_client_batch_size"] == 64


def test_the_lengths_that_are_told_are_those_that_are_read(hub):
    info = hub("masked-lm", provider="hf-inference").get_endpoint_info()
    assert (info["min_input_length"], info["max_input_length"]) == (1, WINDOW)


def test_the_mask_that_is_told_is_the_one_that_is_filled(hub):
    client = hub("masked-lm", provider="hf-inference")
    mask = client.get_endpoint_info()["mask_token"]
    assert len(client.fill_mask(f"the tim{mask}")) == 5


def test_a_model_that_is_not_there_is_told_by_name(hub):
    client = hub("nothing", provider="hf-inference")
    assert client.health_check() is False
    for call in (client.get_endpoint_info, *(lambda c=c: c(client) for c in CALLS.values())):
        with pytest.raises((HfHubHTTPError, TextGenerationError)) as caught:
            call()
        told = "model: expected one of ['causal-lm', 'masked-lm', 'perceiver', 'reversal'], got"
        assert told in str(caught.value)


@pytest.mark.parametrize("name", MODELS)
def test_a_task_that_a_model_cannot_do_is_refused_with_those_that_it_can(hub, name):
    for task in set(CALLS) - set(MODELS[name]):
        client = hub(f"{name}/{task}", provider="hf-inference")
        with pytest.raises((HfHubHTTPError, TextGenerationError)) as caught:
            CALLS[task](client)
        told = f"task: expected a task of {name} ({', '.join(MODELS[name])}), got {task}"
        assert told in str(caught.value)
        assert client.health_check() is False
        with pytest.raises(HfHubHTTPError, match="expected a task of"):
            client.get_endpoint_info()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_s_own_address_does_what_the_addresses_of_its_tasks_do(live, name):
    bodies = {
        "fill-mask": {"inputs": "a<mask>", "parameters": {}},
        "feature-extraction": {"inputs": "time"},
        "sentence-similarity": {
            "inputs": {"source_sentence": "a", "sentences": ["b"]},
            "parameters": {},
        },
        "text-generation": {"inputs": SOURCE, "parameters": {"max_new_tokens": 3}},
    }
    for task in MODELS[name]:
        if task in bodies:
            own = live.post(f"/models/{name}/{task}", json=bodies[task])
            assert own.status_code == 200, own.text
            assert live.post(f"/models/{name}", json=bodies[task]).json() == own.json()


def test_a_client_that_does_not_wait_gets_the_same(live, hub):
    address = f"{live.base_url}/models"

    async def ask():
        async with (
            AsyncInferenceClient(base_url=f"{address}/masked-lm") as masked,
            AsyncInferenceClient(base_url=f"{address}/reversal") as reversal,
        ):
            filled = await masked.fill_mask("the tim<mask>")
            stream = await reversal.text_generation(SOURCE, stream=True)
            return filled, [text async for text in stream]

    filled, texts = asyncio.run(ask())
    assert [one.token for one in filled] == [
        one.token for one in hub("masked-lm").fill_mask("the tim<mask>")
    ]
    assert "".join(texts) == hub("reversal").text_generation(SOURCE)


def test_a_key_opens_the_service_for_the_client_as_for_others():
    with listening(fake_app(api_keys=["secret"])) as client:
        address = f"{client.base_url}/models/reversal"
        owner = InferenceClient(base_url=address, api_key="secret")
        assert owner.text_generation(SOURCE) == SOURCE[::-1]
        for key in (None, "another"):
            stranger = InferenceClient(base_url=address, api_key=key)
            with pytest.raises(TextGenerationError, match="Authorization: expected") as caught:
                stranger.text_generation(SOURCE)
            assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/models/masked-lm", 405),
        ("GET", "/models/masked-lm/fill-mask", 405),
        ("POST", "/models/masked-lm/info", 405),
        ("POST", "/models/masked-lm/health", 405),
        ("POST", "/models/masked-lm/question-answering", 404),
        ("POST", "/models/masked-lm/", 404),
        ("POST", "/models/", 404),
        ("GET", "/models/nothing/info", 404),
        ("GET", "/models/nothing/health", 404),
        ("GET", "/models/masked-lm/translation/health", 404),
    ],
)
def test_what_is_not_there_is_told_in_the_shape_of_the_protocol(live, method, path, status):
    answer = live.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error_type"] == "validation"
    assert len(answer.json()["error"]) > 10


def test_what_was_read_and_written_is_counted(live):
    def counted():
        lines = live.get("/metrics").text.splitlines()
        found = (line for line in lines if line.startswith("triwire_tokens_total{"))
        return dict(line.rsplit(" ", 1) for line in found)

    before = counted()
    assert live.post("/models/masked-lm", json={"inputs": "a<mask>", "parameters": {}}).is_success
    assert live.post("/models/causal-lm", json={"inputs": "a"}).is_success
    after = counted()
    grown = {
        label: float(after[label]) - float(before.get(label, 0))
        for label in after
        if after[label] != before.get(label)
    }
    assert grown == {
        'triwire_tokens_total{direction="input",task="fill-mask"}': 2,
        'triwire_tokens_total{direction="input",task="complete"}': 1,
        'triwire_tokens_total{direction="output",task="complete"}': 100,
    }

"""What the OpenAPI schema says of the addresses of the protocol."""

import pytest

from tests.service.test_openapi import require_described, resolve

MODELS = ["causal-lm", "masked-lm", "perceiver", "reversal"]
TASKS = [
    "fill-mask",
    "feature-extraction",
    "sentence-similarity",
    "text-generation",
    "translation",
    "summarization",
]


@pytest.fixture(scope="module")
def openapi(client):
    return client.get("/openapi.json").json()


def schema_of(openapi, path):
    body = openapi["paths"][path]["post"]["requestBody"]["content"]
    assert list(body) == ["application/json"]
    return resolve(openapi, body["application/json"]["schema"])


def require_descriptions(openapi, schema):
    assert schema["additionalProperties"] is False
    for name, field in schema["properties"].items():
        assert field.get("description"), name
        for inner in field.get("anyOf", [field]):
            if "$ref" in inner:
                require_descriptions(openapi, resolve(openapi, inner))


@pytest.mark.parametrize("task", TASKS)
def test_every_field_of_a_request_is_described(openapi, task):
    require_descriptions(openapi, schema_of(openapi, f"/models/{{name}}/{task}"))


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_has_the_fields_that_are_described(client, openapi, task):
    path = f"/models/{{name}}/{task}"
    described = openapi["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
    (example, *_) = schema_of(openapi, path)["examples"]
    answers = [client.post(path.replace("{name}", name), json=example) for name in MODELS]
    good = [answer.json() for answer in answers if answer.status_code == 200]
    assert good
    for answer in good:
        require_described(openapi, described["schema"], answer)


def test_a_model_s_own_address_takes_what_those_of_its_tasks_take(openapi):
    schema = schema_of(openapi, "/models/{name}")
    names = {resolve(openapi, one)["title"] for one in schema["anyOf"]}
    assert names == {
        "FillMaskInput",
        "FeatureExtractionInput",
        "SentenceSimilarityInput",
        "TextGenerationInput",
    }
    for example in schema["examples"]:
        assert "inputs" in example


@pytest.mark.parametrize("path", ["/models/{name}", *(f"/models/{{name}}/{t}" for t in TASKS)])
def test_every_error_is_described_in_the_shape_of_the_protocol(openapi, path):
    responses = openapi["paths"][path]["post"]["responses"]
    assert {"200", "400", "401", "404", "413", "415", "422", "429", "500", "503", "504"} == set(
        responses
    )
    for status, response in responses.items():
        assert response["description"]
        if status != "200":
            schema = resolve(openapi, response["content"]["application/json"]["schema"])
            assert list(schema["properties"]) == ["error", "error_type"]

import pytest

from service.app import create_app
from service.settings import Settings

CALLS = {
    ("post", "/v1/fill-mask"),
    ("post", "/v1/decode"),
    ("post", "/v1/latents"),
    ("post", "/v1/embeddings"),
    ("post", "/v1/completions"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{name}"),
    ("get", "/v1/models/{name}/plots/{plot}"),
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/health"),
    ("get", "/metrics"),
    ("post", "/v1/models/{name}/reload"),
    ("get", "/v2"),
    ("get", "/v2/health/live"),
    ("get", "/v2/health/ready"),
    ("get", "/v2/models/{name}"),
    ("get", "/v2/models/{name}/config"),
    ("get", "/v2/models/{name}/ready"),
    ("post", "/v2/models/{name}/infer"),
    ("post", "/v2/repository/index"),
    ("post", "/models/{name}"),
    ("post", "/models/{name}/fill-mask"),
    ("post", "/models/{name}/feature-extraction"),
    ("post", "/models/{name}/sentence-similarity"),
    ("post", "/models/{name}/text-generation"),
    ("post", "/models/{name}/translation"),
    ("post", "/models/{name}/summarization"),
    ("get", "/models/{name}/health"),
    ("get", "/models/{name}/info"),
    ("get", "/models/{name}/{task}/health"),
    ("get", "/models/{name}/{task}/info"),
}
INFERENCE = sorted(
    path
    for method, path in CALLS
    if method == "post" and path.startswith("/v1/") and "{" not in path
)
OPEN_INFERENCE = "/v2/models/{name}/infer"


@pytest.fixture(scope="module")
def openapi(client):
    return client.get("/openapi.json").json()


def resolve(openapi, schema):
    while "$ref" in schema:
        schema = openapi["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def request_schema(openapi, path):
    content = openapi["paths"][path]["post"]["requestBody"]["content"]
    arrays = ["application/x-npy"] if path == "/v1/latents" else []
    assert list(content) == ["application/json", *arrays]
    return resolve(openapi, content["application/json"]["schema"])


def test_every_call_that_is_served_is_described_and_no_other(openapi):
    described = {(method, path) for path, calls in openapi["paths"].items() for method in calls}
    assert described == CALLS


def test_every_call_says_what_it_does(openapi):
    for method, path in CALLS:
        assert openapi["paths"][path][method]["description"]


@pytest.mark.parametrize("path", INFERENCE)
def test_the_example_of_a_request_works_when_it_is_sent(client, openapi, path):
    examples = request_schema(openapi, path)["examples"]
    assert examples
    for example in examples:
        answer = client.post(path, json=example)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", INFERENCE)
def test_every_field_of_a_request_is_described(openapi, path):
    schema = request_schema(openapi, path)
    assert schema["additionalProperties"] is False
    for name, field in schema["properties"].items():
        assert field.get("description"), name


@pytest.mark.parametrize("path", INFERENCE)
def test_every_status_of_the_table_is_described_with_the_body_of_errors(openapi, path):
    responses = openapi["paths"][path]["post"]["responses"]
    assert set(responses) == {
        "200",
        "400",
        "401",
        "404",
        "413",
        "415",
        "422",
        "429",
        "500",
        "503",
        "504",
    }
    for status, response in responses.items():
        assert response["description"]
        schema = resolve(openapi, response["content"]["application/json"]["schema"])
        if status != "200":
            error = resolve(openapi, schema["properties"]["error"])
            assert list(error["properties"]) == ["message", "type", "param", "code", "request_id"]


@pytest.mark.parametrize("path", INFERENCE)
def test_an_answer_has_the_fields_that_are_described(client, openapi, path):
    (example, *_) = request_schema(openapi, path)["examples"]
    answer = client.post(path, json=example).json()
    described = openapi["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
    require_described(openapi, described["schema"], answer)


def require_described(openapi, schema, value):
    """Walks through objects and lists, as far as the schema describes them."""
    schema = resolve(openapi, schema)
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema.get("required", [])) <= set(value) <= set(schema["properties"])
        for name, inner in value.items():
            require_described(openapi, schema["properties"][name], inner)
    elif isinstance(value, list) and "items" in schema:
        for inner in value:
            require_described(openapi, schema["items"], inner)


def test_tensors_are_described_as_what_they_are_sent_as_and_with_their_own_errors(openapi):
    call = openapi["paths"][OPEN_INFERENCE]["post"]
    assert list(call["requestBody"]["content"]) == ["application/json", "application/octet-stream"]
    names = {parameter["name"] for parameter in call["parameters"]}
    assert names == {"name", "Inference-Header-Content-Length"}
    assert set(call["responses"]) == set(openapi["paths"]["/v1/decode"]["post"]["responses"])
    for status, response in call["responses"].items():
        schema = resolve(openapi, response["content"]["application/json"]["schema"])
        assert list(schema["properties"]) == ["error"] or status == "200"


@pytest.mark.parametrize("name", ["masked-lm", "reversal", "causal-lm", "perceiver"])
def test_an_answer_of_tensors_has_the_fields_that_are_described(client, openapi, name):
    call = openapi["paths"][OPEN_INFERENCE]["post"]
    body = resolve(openapi, call["requestBody"]["content"]["application/json"]["schema"])
    schema = call["responses"]["200"]["content"]["application/json"]["schema"]
    answers = [
        client.post(OPEN_INFERENCE.replace("{name}", name), json=example)
        for example in body["examples"]
    ]
    served = [answer.json() for answer in answers if answer.status_code == 200]
    assert served
    for answer in served:
        require_described(openapi, schema, answer)
    for path in ("", "/ready", "/config"):
        described = openapi["paths"][f"/v2/models/{{name}}{path}"]["get"]["responses"]["200"]
        schema = described["content"]["application/json"]["schema"]
        require_described(openapi, schema, client.get(f"/v2/models/{name}{path}").json())


def test_the_documentation_is_served(client):
    answer = client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in answer.text


def test_making_an_application_loads_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr("service.registry.Registry.load", lambda *_: pytest.fail("loaded"))
    app = create_app(Settings(checkpoints=tmp_path))
    assert not app.state.context.registry.is_loaded

import asyncio

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict

from service.rehearsal import examples, rehearse


class Asked(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "a"}, {"text": "b"}]})
    text: str
    model: str | None = None


def application(seen):
    app = FastAPI()

    @app.post("/try")
    async def post_try(asked: Asked):
        seen.append((asked.text, asked.model))
        if asked.model == "unfit":
            raise HTTPException(422)

    @app.post("/try/{name}")
    async def post_try_named(name: str, asked: Asked):
        seen.append((asked.text, asked.model, name))

    @app.post("/no-body")
    async def post_no_body():
        seen.append("no body")

    @app.get("/read")
    async def get_read():
        seen.append("read")

    return app


def test_every_example_is_sent_to_every_model_and_nothing_else_is_called(caplog):
    caplog.set_level("INFO")
    seen = []
    asyncio.run(rehearse(application(seen), ["fit", "unfit"]))
    assert seen == [
        *[("a", "fit"), ("a", "unfit"), ("b", "fit"), ("b", "unfit")],
        *[("a", None, "fit"), ("a", None, "unfit"), ("b", None, "fit"), ("b", None, "unfit")],
    ]
    assert "rehearsed 6 requests" in caplog.text


def test_a_call_that_raises_is_told_and_the_others_are_rehearsed_all_the_same(caplog):
    caplog.set_level("INFO")
    seen = []
    app = application(seen)

    @app.post("/faulty")
    async def post_faulty(asked: Asked):
        raise ValueError("a fault of ours")

    asyncio.run(rehearse(app, ["fit"]))
    assert len(seen) == 4
    assert "/faulty raised ValueError('a fault of ours')" in caplog.text
    assert "/faulty to fit was answered 500" in caplog.text
    assert "rehearsed 4 requests" in caplog.text


def test_every_inference_call_of_the_service_has_an_example_to_rehearse(client):
    openapi = client.get("/openapi.json").json()
    calls = {
        path
        for path, methods in openapi["paths"].items()
        if "requestBody" in methods.get("post", {})
    }
    assert {path for path, _ in examples(openapi)} == calls


def test_the_service_is_ready_only_once_it_has_rehearsed(client):
    """The shared application became ready by itself; every example was answered by some model."""
    assert client.app.state.lifecycle.is_warm
    models = client.app.state.context.registry.models
    for path, example in examples(client.app.openapi()):
        answers = [client.post(path.replace("{name}", name), json=example) for name in models]
        assert 200 in {answer.status_code for answer in answers}

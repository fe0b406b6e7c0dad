import pytest

from tests.service import tiny

FIELDS = [
    "id",
    "object",
    "created",
    "owned_by",
    "wiring",
    "task",
    "version",
    "versions",
    "loading",
    "failure",
    "limits",
    "alphabet",
    "separator",
    "target_alphabet",
    "target_separator",
    "normalization",
    "mask_token",
    "config",
    "recipe",
    "corpus",
    "figures",
    "plots",
]


def test_the_list_is_the_openai_one_with_more_fields(client):
    answer = client.get("/v1/models").json()
    assert list(answer) == ["object", "data"]
    assert answer["object"] == "list"
    assert [list(model) for model in answer["data"]] == [FIELDS] * 4
    assert [m["id"] for m in answer["data"]] == ["causal-lm", "masked-lm", "perceiver", "reversal"]
    for model in answer["data"]:
        assert model["object"] == "model"
        assert model["created"] == 1_700_000_000
        assert model["owned_by"] == "triwire"


@pytest.mark.parametrize("card", tiny.cards(), ids=lambda card: card.name)
def test_a_model_is_described_as_its_card_says(client, card):
    model = client.get(f"/v1/models/{card.name}").json()
    assert list(model) == FIELDS
    assert model == {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "triwire",
        "wiring": card.wiring,
        "task": card.task,
        "version": 1,
        "versions": [1],
        "loading": None,
        "failure": None,
        "limits": card.limits,
        "alphabet": card.vocabulary.alphabet,
        "separator": "",
        "target_alphabet": card.vocabulary.alphabet,
        "target_separator": "",
        "normalization": card.vocabulary.normalization,
        "mask_token": "<mask>" if card.name == "masked-lm" else None,
        "config": card.config,
        "recipe": card.recipe,
        "corpus": card.corpus,
        "figures": card.figures,
        "plots": [tiny.PLOT],
    }


@pytest.mark.parametrize("name", ["nothing", "masked-lm ", "MASKED-LM", "%00", "%ff", "é"])
def test_an_unknown_model_is_not_found(client, name):
    answer = client.get(f"/v1/models/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("model_not_found", "no_such_call")


def test_the_name_of_an_unknown_model_is_not_echoed_whole(client):
    error = client.get("/v1/models/" + "x" * 5000).json()["error"]
    assert error["param"] == "model"
    assert len(error["message"]) < 200


def test_plots_of_a_model_are_named_and_given(client):
    assert client.get("/v1/models/reversal").json()["plots"] == [tiny.PLOT]
    answer = client.get(f"/v1/models/reversal/plots/{tiny.PLOT}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/png"
    assert answer.content == tiny.PICTURE


@pytest.mark.parametrize("plot", ["other.png", "..%2Fmodel.json", "model.json"])
def test_nothing_but_plots_is_given(client, plot):
    answer = client.get(f"/v1/models/reversal/plots/{plot}")
    assert answer.status_code == 404

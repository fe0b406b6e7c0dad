import json
import logging
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from flax import nnx

from models.checkpoint import Bundle, find_bundles, save_model
from models.wirings import WIRINGS
from service import tasks
from service.engine import Engine, Program, Ragged
from service.errors import InvalidInput, ModelNotFound, NotReady
from service.registry import LoadedModel, Registry
from tests.service import tiny


def programs(card):
    """One program that compiles at once, for whatever card has limits."""
    return [
        Program(
            name="lengths",
            function=lambda model, tokens, lengths: {"lengths": lengths},
            ragged=Ragged(name="tokens", dtype=np.int32),
            grid=((1, card.limits["max_len"]),),
        )
    ]


PROGRAMS = dict.fromkeys(("encoder", "encoder-decoder", "decoder", "perceiver"), programs)


@pytest.fixture
def copied(checkpoints, tmp_path):
    """The tiny bundles, to be damaged."""
    return shutil.copytree(checkpoints, tmp_path / "copied")


def load(root):
    registry = Registry(PROGRAMS)
    registry.load(root)
    return registry


def edit_card(bundle, **fields):
    path = bundle / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def data_files(bundle):
    return [path for path in (bundle / "params").rglob("d/*") if path.is_file()]


def test_every_wiring_that_models_can_have_is_compiled_for():
    assert tasks.PROGRAMS.keys() == WIRINGS.keys()


def test_every_bundle_is_loaded_and_ready_to_run(copied):
    registry = load(copied)
    assert registry.is_loaded
    assert registry.failures == {}
    assert sorted(registry.models) == ["causal-lm", "masked-lm", "perceiver", "reversal"]
    for name, model in registry.models.items():
        assert model.card.name == name
        (result,) = model.engine.run("lengths", [{"tokens": np.zeros(3, np.int32)}])
        assert result["lengths"] == 3


def test_the_highest_version_wins_by_number_and_not_by_name(copied):
    card = next(card for card in tiny.cards() if card.name == "reversal")
    for version in (2, 10):
        save_model(copied, replace(card, version=version), tiny.model(card))
    assert load(copied).find("reversal").card.version == 10


def flip_bytes(bundle):
    for path in data_files(bundle):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)


def cut_short(bundle):
    for path in data_files(bundle):
        os.truncate(path, path.stat().st_size // 2)


DAMAGES = {
    "flipped bytes": flip_bytes,
    "parameters gone": lambda bundle: shutil.rmtree(bundle / "params"),
    "files cut short": cut_short,
    "model.json that is no JSON": lambda bundle: (bundle / "model.json").write_text("{"),
    "model.json that is a list": lambda bundle: (bundle / "model.json").write_text("[]"),
    "another format": lambda bundle: edit_card(bundle, format_version=99),
    "an unknown wiring": lambda bundle: edit_card(bundle, wiring="spaghetti"),
    "no limits": lambda bundle: edit_card(bundle, limits={}),
    "another size": lambda bundle: edit_card(bundle, config={"vocab_size": 3}),
    "another name": lambda bundle: edit_card(bundle, name="causal-lm"),
    "another version": lambda bundle: edit_card(bundle, version=7),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_bundle_is_reported_and_takes_no_other_down(copied, damage, caplog):
    damage(copied / "masked-lm" / "1")
    registry = load(copied)
    assert sorted(registry.models) == ["causal-lm", "perceiver", "reversal"]
    assert list(registry.failures) == ["masked-lm"]
    reason = registry.failures["masked-lm"]
    assert 0 < len(reason) <= 300
    assert str(copied) not in reason
    assert any(
        record.levelno == logging.ERROR and "masked-lm" in record.getMessage()
        for record in caplog.records
    )
    with pytest.raises(NotReady, match="masked-lm could not be loaded: ") as caught:
        registry.find("masked-lm")
    assert reason in str(caught.value)
    with pytest.raises(NotReady, match="masked-lm: "):
        registry.choose(None, "encoder")
    assert registry.choose(None, "decoder").card.name == "causal-lm"
    registry.require_ready()


def test_an_older_version_does_not_stand_in_for_a_damaged_one(copied):
    card = next(card for card in tiny.cards() if card.name == "masked-lm")
    flip_bytes(save_model(copied, replace(card, version=2), tiny.model(card)))
    registry = load(copied)
    assert "masked-lm" not in registry.models
    assert registry.failures["masked-lm"].startswith("masked-lm/2: ")


def test_a_model_that_does_not_compile_takes_no_other_down(copied):
    def broken(card):
        (program,) = programs(card)
        return [replace(program, function=lambda model, tokens, lengths: 1 / 0)]

    registry = Registry(PROGRAMS | {"decoder": broken})
    registry.load(copied)
    assert registry.failures == {"causal-lm": "division by zero"}
    assert len(registry.models) == 3


@pytest.mark.parametrize("stop_at", ["before the first", "while the second is compiled"])
def test_loading_ends_soon_when_it_is_told_to_stop(copied, stop_at, caplog):
    registry = Registry({})

    def stopping(card):
        if card.name == "masked-lm":
            registry.stop()
        return programs(card)

    registry._programs = dict.fromkeys(PROGRAMS, stopping)
    if stop_at == "before the first":
        registry.stop()
    registry.load(copied)
    assert list(registry.models) == ([] if stop_at == "before the first" else ["causal-lm"])
    assert registry.failures == {}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_not_ready_says_that_models_are_loading_and_then_why_none_is_there(tmp_path):
    registry = Registry(PROGRAMS)
    for ask in (
        registry.require_ready,
        lambda: registry.find("reversal"),
        lambda: registry.choose(None, "decoder"),
    ):
        with pytest.raises(NotReady, match="models are still loading"):
            ask()
    bundle = tmp_path / "lonely" / "3"
    bundle.mkdir(parents=True)
    (bundle / "model.json").write_text("{}")
    registry.load(tmp_path)
    with pytest.raises(NotReady, match=r"no model could be loaded; lonely: lonely/3/model.json: "):
        registry.require_ready()


def test_loading_ends_even_where_the_directory_cannot_be_read(tmp_path, monkeypatch):
    def refuse(root):
        raise PermissionError(root)

    monkeypatch.setattr("service.registry.find_bundles", refuse)
    registry = Registry(PROGRAMS)
    with pytest.raises(PermissionError):
        registry.load(tmp_path)
    assert registry.is_loaded
    with pytest.raises(NotReady, match="no model could be loaded"):
        registry.require_ready()


def test_an_empty_directory_holds_no_models(tmp_path):
    assert find_bundles(tmp_path) == {}
    registry = load(tmp_path)
    assert registry.models == {}
    with pytest.raises(NotReady):
        registry.require_ready()


class Nothing(nnx.Module):
    """No parameters at all."""


def holding(**wirings):
    """A registry of models that do nothing, by name and wiring."""
    registry = Registry(PROGRAMS)
    for name, wiring in wirings.items():
        card = tiny.card(name, wiring, config={}, vocabulary=tiny.MASKED, limits={})
        registry._models[name] = LoadedModel(card, Engine(Bundle(card, Nothing()), []))
    registry.is_loaded = True
    return registry


def test_the_only_model_that_can_do_a_task_needs_no_name():
    registry = holding(small="encoder", other="decoder")
    assert registry.choose(None, "encoder").card.name == "small"
    assert registry.choose("small", "encoder").card.name == "small"


def test_one_of_several_models_must_be_named():
    registry = holding(small="encoder", large="encoder", other="decoder")
    with pytest.raises(InvalidInput, match=r"model: expected one of \['large', 'small'\]"):
        registry.choose(None, "encoder")
    assert registry.choose("large", "encoder").card.name == "large"


def test_a_model_that_cannot_do_the_task_is_refused_and_those_that_can_are_named():
    registry = holding(small="encoder", other="decoder")
    with pytest.raises(InvalidInput, match=r"can do this \(\['small'\]\), got 'other'"):
        registry.choose("other", "encoder")


def test_an_unknown_model_is_not_found_and_its_name_not_echoed_whole():
    registry = holding(small="encoder")
    for ask in (registry.find, lambda name: registry.choose(name, "encoder")):
        with pytest.raises(ModelNotFound, match=r"expected one of \['small'\], got 'x+'\.\.\. "):
            ask("x" * 1000)


def test_a_task_that_no_model_can_do_is_not_found():
    with pytest.raises(ModelNotFound, match="of wiring perceiver"):
        holding(small="encoder").choose(None, "perceiver")

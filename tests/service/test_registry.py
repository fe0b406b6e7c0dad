import gc
import json
import logging
import os
import shutil
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flax import nnx

from models.checkpoint import Bundle, save_model
from models.directories import find_bundles
from models.wirings import WIRINGS
from service import tasks
from service.engine import Engine
from service.errors import InvalidInput, ModelNotFound, NotReady
from service.programs import Grid, Program, Ragged
from service.registry import LoadedModel, Registry, shaped
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


@pytest.mark.parametrize("name", [None, "reversal"])
def test_what_is_gone_has_not_failed_any_more(copied, name):
    (copied / "reversal" / "1" / "model.json").write_text("{}")
    (copied / "masked-lm" / "1" / "model.json").write_text("{}")
    registry = load(copied)
    assert registry.failures.keys() == {"masked-lm", "reversal"}
    shutil.rmtree(copied / "reversal")
    registry.load(copied, "masked-lm")
    assert registry.failures.keys() == {"masked-lm", "reversal"}
    registry.load(copied, name)
    assert registry.failures.keys() == {"masked-lm"}
    with pytest.raises(ModelNotFound):
        registry.find("reversal")


def test_directories_that_are_shut_are_told_of_and_the_others_served(copied, monkeypatch, caplog):
    shut = copied / "lost+found"
    shut.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != shut)
    assert load(copied).failures == {}
    assert f"{shut} cannot be read and is left out" in caplog.text


def test_parameters_that_are_not_finite_are_named(copied):
    card = next(card for card in tiny.cards() if card.name == "masked-lm")
    model = tiny.model(card)
    kernel = model.encoder.token_embedding.embedding
    kernel[...] = kernel[...].at[0, 0].set(np.nan)
    save_model(copied, card, model)
    registry = load(copied)
    assert registry.failures == {
        "masked-lm": "masked-lm/1: expected finite parameters, got NaN or infinity in "
        "encoder.token_embedding.embedding"
    }


def test_a_model_whose_first_results_are_not_finite_is_not_served(copied):
    def infinite(card):
        (program,) = programs(card)
        return [replace(program, function=lambda *_: {"x": np.full(1, np.inf, np.float32)})]

    registry = Registry(PROGRAMS | {"decoder": infinite})
    registry.load(copied)
    assert registry.failures == {"causal-lm": "lengths: x holds NaN or infinity"}


def save_version(root, version, seed=0):
    card = replace(next(c for c in tiny.cards() if c.name == "reversal"), version=version)
    return save_model(root, card, tiny.model(card, seed))


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (("reversal",), {"reversal": [3]}),
        (("reversal/2",), {"reversal": [2]}),
        (("reversal/3", "reversal/1"), {"reversal": [1, 3]}),
        (("reversal/1", "masked-lm"), {"masked-lm": [1], "reversal": [1]}),
    ],
)
def test_a_selection_is_served_and_nothing_else(copied, selection, expected):
    for version in (2, 3):
        save_version(copied, version)
    registry = Registry(PROGRAMS, selection=selection)
    registry.load(copied)
    assert registry.failures == {}
    found = {n: [m.card.version for m in registry.versions(n)] for n in registry.models}
    assert found == expected
    highest = max(expected["reversal"])
    assert registry.find("reversal").card.version == highest
    for version in expected["reversal"]:
        assert registry.find("reversal", version).card.version == version
    with pytest.raises(ModelNotFound, match=r"version: expected one of the versions \[.+\], got 9"):
        registry.find("reversal", 9)


def test_a_selected_bundle_that_is_not_there_is_a_failure_that_says_so(copied):
    registry = Registry(PROGRAMS, selection=("reversal/7", "masked-lm"))
    registry.load(copied)
    assert list(registry.models) == ["masked-lm"]
    assert registry.failures["reversal"].startswith("reversal/7: expected a readable model.json")


def test_loading_again_serves_the_new_version_and_frees_the_old_one(copied, caplog):
    caplog.set_level("INFO")
    registry = load(copied)
    kept, old = registry.find("masked-lm"), registry.find("reversal")
    watched = weakref.ref(old.engine)
    save_version(copied, 2)
    registry.load(copied)
    assert registry.find("reversal").card.version == 2
    assert registry.find("masked-lm") is kept
    # Whoever has found the old version can still work with it.
    (result,) = old.engine.run("lengths", [{"tokens": np.zeros(3, np.int32)}])
    assert result["lengths"] == 3
    assert "reversal/1 is replaced" not in caplog.text
    del old
    gc.collect()
    assert watched() is None
    assert "reversal/1 is replaced and has answered its last request" in caplog.text


def test_only_the_model_that_is_named_is_loaded_again(copied):
    registry = load(copied)
    other = next(card for card in tiny.cards() if card.name == "masked-lm")
    save_model(copied, replace(other, version=2), tiny.model(other))
    save_version(copied, 2)
    registry.load(copied, "reversal")
    assert registry.find("reversal").card.version == 2
    assert registry.find("masked-lm").card.version == 1


def test_a_version_that_was_overwritten_is_loaded_anew(copied):
    registry = load(copied)
    old = registry.find("reversal")
    registry.load(copied)
    assert registry.find("reversal") is old
    save_version(copied, 1, seed=1)
    registry.load(copied)
    assert registry.find("reversal") is not old


def test_a_bad_bundle_leaves_the_old_version_serving_and_says_why_until_it_is_mended(copied):
    registry = load(copied)
    old = registry.find("reversal")
    flip_bytes(save_version(copied, 2))
    registry.load(copied)
    assert registry.find("reversal") is old
    assert registry.choose(None, "encoder-decoder") is old
    assert registry.failures["reversal"].startswith("reversal/2: ")
    save_version(copied, 2)
    registry.load(copied)
    assert registry.find("reversal").card.version == 2
    assert registry.failures == {}


def test_how_far_loading_is_can_be_seen(copied, caplog):
    caplog.set_level("INFO")
    seen = []

    def telling(card):
        (program,) = programs(card)

        def function(model, tokens, lengths):
            seen.append(dict(registry.loading))
            with pytest.raises(NotReady, match=r"models are still loading; .*: 0 of 1 shapes"):
                registry.require_ready()
            return {"lengths": lengths}

        return [replace(program, function=function)]

    registry = Registry(dict.fromkeys(PROGRAMS, telling))
    registry.load(copied)
    assert registry.failures == {}
    assert seen == [{name: "0 of 1 shapes compiled"} for name in sorted(registry.models)]
    assert registry.loading == {}
    assert "loading reversal/1: 0 of 1 shapes compiled, next lengths 1x12" in caplog.text
    assert "reversal/1 is ready: 1 shapes, 0 of them kept from before, in" in caplog.text


def test_a_program_is_compiled_over_the_shapes_that_are_set_for_it(copied, caplog):
    grids = {"lengths": Grid(batch_sizes=(2,)), "nothing": Grid()}
    registry = Registry(PROGRAMS, grids=grids)
    registry.load(copied)
    assert registry.find("reversal").engine.programs["lengths"].grid == ((1, 12), (2, 12))
    assert "grids: expected names of programs (lengths), got 'nothing'" in caplog.text


def test_a_device_that_is_missing_keeps_models_from_being_served(copied):
    registry = Registry(PROGRAMS, device="tpu")
    registry.load(copied)
    assert registry.models == {}
    assert "device: expected a tpu, found only cpu" in registry.failures["reversal"]


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


def holding(*defaults, **wirings):
    """A registry of models that do nothing, by name and wiring; some are the default of a task."""
    registry = Registry(PROGRAMS)
    for name, wiring in wirings.items():
        task = {"name": "any"} | ({"is_default": True} if name in defaults else {})
        card = tiny.card(name, wiring, config={}, vocabulary=tiny.MASKED, limits={}, task=task)
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


def test_of_several_models_the_one_that_calls_itself_the_default_need_not_be_named():
    registry = holding("small", small="encoder", large="encoder", other="decoder")
    assert registry.choose(None, "encoder").card.name == "small"
    assert registry.choose("large", "encoder").card.name == "large"


def test_of_several_defaults_one_must_be_named():
    registry = holding("small", "large", small="encoder", large="encoder", third="encoder")
    with pytest.raises(InvalidInput, match=r"expected one of \['large', 'small', 'third'\]"):
        registry.choose(None, "encoder")


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


@pytest.mark.parametrize(
    ("platform", "is_on_demand", "batches"),
    [("cpu", False, {1, 2}), ("gpu", False, {1, 8, 64}), ("gpu", True, {1, 2})],
)
def test_on_an_accelerator_programs_get_large_batches_unless_they_are_rare(
    platform, is_on_demand, batches
):
    program = Program(
        name="read",
        function=dict,
        ragged=Ragged(name="tokens", dtype=np.int32),
        grid=((1, 16), (2, 16)),
        is_on_demand=is_on_demand,
    )
    on = SimpleNamespace(platform=platform)
    assert {batch for batch, _ in shaped(program, on, {}).grid} == batches
    chosen = shaped(program, on, {"read": Grid(batch_sizes=(3,))})
    assert {batch for batch, _ in chosen.grid} == {1, 3}

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import ValidationError

from service import __main__
from service.settings import Settings

# Another value than the default for every setting, as it is written in a variable or a flag.
OTHER: dict[str, Any] = {
    "host": "0.0.0.0",
    "port": 8001,
    "checkpoints": Path("/elsewhere"),
    "max_body_bytes": 1001,
    "max_inputs": 1002,
    "max_text_len": 1003,
    "max_masks": 1004,
    "max_new_tokens": 1005,
    "max_attention_values": 1006,
    "max_queue_rows": 1007,
    "request_timeout_s": 1.5,
}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("TRIWIRE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch, checkpoints):
    """What ``main`` hands to uvicorn, which does not run."""
    calls = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: calls.append((app, options)))
    monkeypatch.setenv("TRIWIRE_CHECKPOINTS", str(checkpoints))
    return calls


def test_every_setting_is_listed_here_with_another_value():
    assert OTHER.keys() == Settings.model_fields.keys()
    assert all(OTHER[name] != getattr(Settings(), name) for name in OTHER)


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_is_read_from_its_variable(name, monkeypatch):
    monkeypatch.setenv(f"TRIWIRE_{name.upper()}", str(OTHER[name]))
    assert Settings() == Settings(**{name: OTHER[name]})
    assert getattr(Settings(), name) == OTHER[name]


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_is_read_from_its_flag_which_wins_over_its_variable(
    name, monkeypatch, served, checkpoints
):
    if name != "checkpoints":
        monkeypatch.setenv(f"TRIWIRE_{name.upper()}", str(getattr(Settings(), name)))
    value = checkpoints if name == "checkpoints" else OTHER[name]
    assert __main__.main(["--" + name.replace("_", "-"), str(value)]) == 0
    ((app, options),) = served
    settings = app.state.context.settings
    assert getattr(settings, name) == value
    assert (options["host"], options["port"]) == (settings.host, settings.port)
    assert options["workers"] == 1


@pytest.mark.parametrize("name", OTHER)
def test_every_setting_is_described_in_the_help(name, capsys):
    with pytest.raises(SystemExit) as caught:
        __main__.main(["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--" + name.replace("_", "-") in text
    assert " ".join(Settings.model_fields[name].description.split()) in text


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("port", "-1"),
        ("port", "65536"),
        ("port", "http"),
        ("port", ""),
        ("max_body_bytes", "0"),
        ("max_body_bytes", "1.5"),
        ("max_inputs", "0"),
        ("max_text_len", "0"),
        ("max_masks", "0"),
        ("max_new_tokens", "many"),
        ("max_attention_values", "-5"),
        ("max_queue_rows", "0"),
        ("request_timeout_s", "0"),
        ("request_timeout_s", "nan"),
        ("request_timeout_s", "inf"),
        ("request_timeout_s", "soon"),
    ],
)
def test_a_wrong_setting_is_named_on_one_line_with_status_2(
    name, wrong, monkeypatch, served, capsys
):
    with pytest.raises(ValidationError):
        Settings(**{name: wrong})
    assert __main__.main([f"--{name.replace('_', '-')}={wrong}"]) == 2
    from_flag = capsys.readouterr().err
    monkeypatch.setenv(f"TRIWIRE_{name.upper()}", wrong)
    assert __main__.main([]) == 2
    assert capsys.readouterr().err == from_flag
    assert from_flag.startswith(f"error: {name}: ")
    assert from_flag.endswith(f"got {wrong!r}\n")
    assert from_flag.count("\n") == 1
    assert served == []


def test_an_unknown_flag_is_refused_with_status_2(served, capsys):
    with pytest.raises(SystemExit) as caught:
        __main__.main(["--prot", "8000"])
    assert caught.value.code == 2
    assert "--prot" in capsys.readouterr().err
    assert served == []


@pytest.mark.parametrize("kind", ["empty", "missing", "file", "without versions"])
def test_a_directory_without_models_is_named_with_status_1_and_nothing_is_served(
    kind, tmp_path, served, capsys
):
    root = tmp_path / "checkpoints"
    if kind == "file":
        root.write_text("")
    elif kind != "missing":
        root.mkdir()
    if kind == "without versions":
        (root / "masked-lm").mkdir()
        (root / "masked-lm" / "model.json").write_text("{}")
    assert __main__.main(["--checkpoints", str(root)]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: checkpoints: expected models as NAME/VERSION/model.json")
    assert str(root) in message
    assert served == []


def test_settings_do_not_change_once_they_are_made():
    with pytest.raises(ValidationError):
        Settings().port = 1


def test_the_module_can_be_run(served, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["service", "--port", "0"])
    assert __main__.main() == 0
    assert served[0][1]["port"] == 0

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from models import allocator, cores
from service import __main__, compilation, device, logs, server, tracing
from service.device import find_device
from service.settings import SECRETS, GridSetting, Settings, load_settings

GRIDS_IN_TOML = "[grids.decode]\nbatch_sizes = [4, 16]\nmax_tokens = 512\n"
# Another value than the default for every setting, as it is written in a variable or a flag.
OTHER: dict[str, Any] = {
    "host": "0.0.0.0",
    "port": 8001,
    "checkpoints": Path("/elsewhere"),
    "models": ("reversal", "masked-lm/1"),
    "device": "cpu",
    "dtype": "bfloat16",
    "grids": {"decode": GridSetting(batch_sizes=(4, 16), max_tokens=512)},
    "calls_at_once": 3,
    "compilation_cache": "/kept",
    "api_keys": ("one-key", "another"),
    "api_keys_file": Path("/keys"),
    "protected": ("metrics", "docs"),
    "cors_origins": ("https://one.example", "https://two.example"),
    "root_path": "/triwire",
    "log_format": "json",
    "log_level": "warning",
    "tracing": True,
    "shutdown_grace_s": 2.5,
    "drain_timeout_s": 3.5,
    "max_concurrent_requests": 1008,
    "max_body_bytes": 1001,
    "max_inputs": 1002,
    "max_text_len": 1003,
    "max_masks": 1004,
    "max_new_tokens": 1005,
    "max_attention_values": 1006,
    "max_queue_rows": 1007,
    "request_timeout_s": 1.5,
}
FLAGS = [name for name in OTHER if name not in SECRETS]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("TRIWIRE_"):
            monkeypatch.delenv(name)


def written(value):
    """A value as variables and flags have it."""
    if isinstance(value, dict):
        return json.dumps(
            {name: grid.model_dump(exclude_unset=True) for name, grid in value.items()}
        )
    return ",".join(value) if isinstance(value, tuple) else str(value)


@pytest.fixture
def served(monkeypatch, checkpoints):
    """The settings that ``main`` serves with; nothing runs, JAX and the log stay as they are."""
    calls = []

    class Quiet(server.Server):
        def run(self, sockets=None):
            calls.append(self._settings)
            self.started = True

    monkeypatch.setattr(__main__, "Server", Quiet)
    monkeypatch.setattr(compilation, "cache_directory", lambda where: None)
    monkeypatch.setattr(device, "reserve", find_device)
    monkeypatch.setattr(cores, "run_calls_side_by_side", lambda: True)
    monkeypatch.setattr(allocator, "keep_memory", lambda num_heaps: True)
    monkeypatch.setattr(logs, "set_up", lambda *_: None)
    monkeypatch.setattr(tracing, "exporting", lambda: None)
    monkeypatch.setenv("TRIWIRE_CHECKPOINTS", str(checkpoints))
    return calls


def test_every_setting_is_listed_here_with_another_value():
    assert OTHER.keys() == Settings.model_fields.keys()
    assert all(OTHER[name] != getattr(Settings(), name) for name in OTHER)


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_is_read_from_its_variable(name, monkeypatch):
    monkeypatch.setenv(f"TRIWIRE_{name.upper()}", written(OTHER[name]))
    assert Settings() == Settings(**{name: OTHER[name]})
    assert plain(getattr(Settings(), name)) == OTHER[name]


def plain(value):
    """A setting with its secrets told."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.get_secret_value() if isinstance(value, SecretStr) else value


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("kind", ["toml", "env"])
def test_a_setting_is_read_from_a_file_over_which_its_variable_wins(
    name, kind, monkeypatch, tmp_path
):
    file = tmp_path / f"settings.{kind}"
    value = OTHER[name]
    if kind == "toml":
        value = str(value) if isinstance(value, Path) else value
        line = f"{name} = {json.dumps(value)}\n" if not isinstance(value, dict) else GRIDS_IN_TOML
        file.write_text(line)
    else:
        file.write_text(f"# what is served\nTRIWIRE_{name.upper()}={written(value)}\n")
    loaded = load_settings(file)
    assert plain(getattr(loaded, name)) == OTHER[name]
    assert loaded == Settings(**{name: OTHER[name]})
    default = Settings.model_fields[name].default
    if default is not None:
        monkeypatch.setenv(f"TRIWIRE_{name.upper()}", written(default))
        assert getattr(load_settings(file), name) == default
    assert plain(getattr(load_settings(file, **{name: OTHER[name]}), name)) == OTHER[name]


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_the_file_is_named_by_a_flag_or_a_variable(how, monkeypatch, served, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("max_inputs = 7\n")
    if how == "variable":
        monkeypatch.setenv("TRIWIRE_CONFIG", str(file))
    assert __main__.main(["--config", str(file)] if how == "flag" else []) == 0
    assert served[0].max_inputs == 7


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.toml", "prot = 8000", "expected names of settings, got 'prot'"),
        ("x.toml", "port = ", "Invalid value"),
        ("x.env", "TRIWIRE_PROT=8000", "expected names of settings, got 'prot'"),
        ("x.env", "PORT=8000", "expected names that start with TRIWIRE_, got 'PORT'"),
        ("x.toml", None, "No such file"),
        ("x.env", None, "No such file"),
        ("x.toml", "port = 99999999", "port: Input should be less than or equal to 65535"),
        ("x.toml", "api_keys = 5", "api_keys: "),
    ],
)
def test_a_wrong_file_is_named_with_status_2(name, content, message, served, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert __main__.main(["--config", str(tmp_path / name)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert served == []


def test_keys_are_no_flag_and_are_never_told(monkeypatch, served, capsys):
    with pytest.raises(SystemExit):
        __main__.main(["--api-keys", "secret-key"])
    monkeypatch.setenv("TRIWIRE_API_KEYS", "secret-key,other")
    assert "secret-key" not in repr(Settings())
    capsys.readouterr()
    monkeypatch.setenv("TRIWIRE_PORT", "wrong")
    assert __main__.main([]) == 2
    assert "secret-key" not in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "# nothing\n\n"])
def test_a_file_of_keys_without_keys_is_named_with_status_1(content, served, tmp_path, capsys):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    assert __main__.main(["--api-keys-file", str(file)]) == 1
    assert capsys.readouterr().err.startswith("error: api_keys_file: expected a")
    assert served == []


@pytest.fixture
def key_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("a-key\n")
    return file


@pytest.mark.parametrize("name", FLAGS)
def test_a_setting_is_read_from_its_flag_which_wins_over_its_variable(
    name, monkeypatch, served, checkpoints, key_file
):
    if name not in ("checkpoints", "api_keys_file"):
        monkeypatch.setenv(f"TRIWIRE_{name.upper()}", written(getattr(Settings(), name)))
    value = {"checkpoints": checkpoints, "api_keys_file": key_file}.get(name, OTHER[name])
    assert __main__.main(["--" + name.replace("_", "-"), written(value)]) == 0
    (settings,) = served
    assert getattr(settings, name) == value


@pytest.mark.parametrize("name", FLAGS)
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
        ("models", "a/b/c"),
        ("models", "reversal/one"),
        ("device", "cuda"),
        ("dtype", "float16"),
        ("grids", "decode"),
        ("compilation_cache", ""),
        ("protected", "keys"),
        ("root_path", "triwire"),
        ("root_path", "/triwire/"),
        ("log_format", "xml"),
        ("log_level", "loud"),
        ("tracing", "perhaps"),
        ("shutdown_grace_s", "-1"),
        ("drain_timeout_s", "inf"),
        ("max_concurrent_requests", "0"),
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "tpu"], "device: expected a tpu, found only cpu"),
        (["--models", "nothing"], "models: expected models of ['causal-lm', "),
        (["--models", "reversal,reversal/7"], "got 'reversal/7'"),
        (["--models", "nothing/1"], "got 'nothing/1'"),
    ],
)
def test_what_is_not_there_is_named_with_status_1_and_nothing_is_served(
    flags, message, served, capsys
):
    assert __main__.main(flags) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert served == []


def test_directories_that_are_shut_are_told_where_no_model_is_found(
    served, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("TRIWIRE_CHECKPOINTS", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert __main__.main([]) == 1
    assert capsys.readouterr().err.endswith(f"found none; {tmp_path} cannot be read\n")


def test_the_process_keeps_what_it_compiles_where_the_setting_says(served, monkeypatch):
    told = []
    monkeypatch.setattr(compilation, "cache_directory", told.append)
    assert __main__.main(["--compilation-cache", "/kept"]) == 0
    assert told == ["/kept"]


@pytest.mark.parametrize("kept", [None, Path("/kept")])
def test_the_cache_of_jax_is_left_out_where_the_service_has_its_own(served, monkeypatch, kept):
    told = []
    monkeypatch.setattr(compilation, "cache_directory", lambda where: kept)
    monkeypatch.setattr(compilation, "leave_out_cache_of_jax", lambda: told.append(kept))
    assert __main__.main([]) == 0
    assert told == [kept] * bool(kept)


def test_settings_do_not_change_once_they_are_made():
    with pytest.raises(ValidationError):
        Settings().port = 1


def test_the_module_can_be_run(served, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["service", "--port", "0"])
    assert __main__.main() == 0
    assert served[0].port == 0

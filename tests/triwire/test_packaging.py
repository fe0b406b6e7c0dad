"""What ``pip install`` puts where, built offline as pip would."""

import email
import importlib
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import flit_core.buildapi
import pytest

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The names of the files in a wheel, with the texts of some."""

    def build(hook):
        monkeypatch.chdir(ROOT)
        with zipfile.ZipFile(tmp_path / getattr(flit_core.buildapi, hook)(str(tmp_path))) as built:
            return {name: built.read(name).decode() for name in built.namelist()}

    return build


def test_a_wheel_holds_the_client_and_nothing_else(wheel):
    files = wheel("build_wheel")
    tops = {name.split("/")[0] for name in files}
    assert tops == {"triwire", f"triwire-{PROJECT['project']['version']}.dist-info"}
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "triwire").rglob("*.py")}
    assert {name for name in files if name.endswith(".py")} == sources
    assert "triwire/py.typed" in files


def test_a_wheel_needs_two_packages_and_the_rest_are_extras(wheel):
    files = wheel("build_wheel")
    (told,) = [text for name, text in files.items() if name.endswith("METADATA")]
    required = email.message_from_string(told).get_all("Requires-Dist")
    plain = [requirement for requirement in required if "extra ==" not in requirement]
    assert [requirement.split(">")[0].strip() for requirement in plain] == ["httpx2", "numpy"]
    assert [r for r in required if "fastapi" in r and 'extra == "serve"' in r]


def test_an_editable_install_sees_the_checkout(wheel):
    files = wheel("build_editable")
    assert files["triwire.pth"].strip() == str(ROOT)


def test_the_command_is_a_function_that_is_there():
    ((name, target),) = PROJECT["project"]["scripts"].items()
    module, function = target.split(":")
    assert name == "triwire"
    assert callable(getattr(importlib.import_module(module), function))


def test_the_client_imports_nothing_of_the_rooms():
    """By what is loaded, which sees imports that no reading of sources does."""
    script = (
        "import sys, triwire.cli.main, triwire\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'jax', 'flax', 'fastapi', 'pydantic', 'service', 'models'}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_what_builds_it_is_locked_with_hashes():
    lock = (ROOT / "requirements-build.lock").read_text(encoding="utf-8")
    (requirement,) = PROJECT["build-system"]["requires"]
    assert PROJECT["dependency-groups"]["build"] == [requirement]
    assert lock.startswith("flit-core==")
    assert "--hash=sha256:" in lock
    assert "://" not in lock


def test_an_environment_is_linked_to_the_checkout_without_an_index():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for option in ("--no-index", "--no-deps", "--no-build-isolation", "--editable ."):
        assert option in makefile
    assert makefile.count("$(LINK)") == 2

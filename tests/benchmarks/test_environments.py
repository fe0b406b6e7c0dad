import ast
import re
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.peers.environments import PeerError, python_of

ROOT = Path(__file__).parents[2]
LOCKED = sorted(environments.LOCKS.glob("*.lock"))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Locks in a directory of the test's own, and the names of those that pip was asked for."""
    asked, refused = [], set()

    def install(python, lock):
        asked.append(lock.name)
        return 1 if lock.name in refused else 0

    def create(directory, *, with_pip):
        (directory / "bin").mkdir(parents=True)
        (directory / "bin" / "python").touch()

    monkeypatch.setattr(environments, "LOCKS", tmp_path)
    monkeypatch.setattr(environments, "VARIANTS", {"two": ("light", "heavy")})
    monkeypatch.setattr(environments, "_install", install)
    monkeypatch.setattr(environments.venv, "create", create)
    monkeypatch.setenv(environments.DIRECTORY_VARIABLE, str(tmp_path / "made"))
    for name in ("one", "light", "heavy"):
        (tmp_path / f"{name}.lock").write_text(name)
    return asked, refused


def test_an_environment_is_made_once(installed, tmp_path):
    pythons = {python_of("one") for _ in range(3)}
    assert pythons == {tmp_path / "made" / "one" / "bin" / "python"}
    assert installed[0] == ["one.lock"]


def test_another_lock_makes_it_anew_with_nothing_left_of_the_old_one(installed, tmp_path):
    left = python_of("one").parent / "left"
    left.touch()
    (tmp_path / "one.lock").write_text("newer")
    python_of("one")
    assert installed[0] == ["one.lock", "one.lock"]
    assert not left.exists()


def test_the_first_variant_that_can_be_installed_is_taken(installed, capsys):
    asked, refused = installed
    refused.add("light.lock")
    python_of("two")
    python_of("two")
    assert asked == ["light.lock", "heavy.lock"]
    assert "two: pip ended with status 1 on light.lock" in capsys.readouterr().err


def test_where_none_can_be_installed_the_error_says_so_and_nothing_stays(installed, tmp_path):
    asked, refused = installed
    refused.add("one.lock")
    for _ in range(2):
        with pytest.raises(PeerError, match=r"one: pip ended with status 1 on one\.lock"):
            python_of("one")
    assert asked == ["one.lock", "one.lock"]
    assert not (tmp_path / "made" / "one").exists()


def test_an_unknown_peer_is_told_which_there_are(installed):
    expected = "expected one of ['heavy', 'light', 'one'], got 'three': no three.lock"
    with pytest.raises(PeerError, match=re.escape(expected)):
        python_of("three")


@pytest.mark.parametrize("lock", LOCKED, ids=lambda lock: lock.stem)
def test_what_a_peer_needs_is_locked_with_hashes_and_no_address(lock):
    text = lock.read_text()
    packages = re.findall(r"(?m)^\S.*\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text)
    assert "".join(packages) == text
    assert "://" not in text
    assert lock.with_suffix(".in").is_file()


def test_every_list_of_a_peer_is_locked():
    listed = {path.stem for path in environments.LOCKS.glob("*.in")}
    assert listed == {lock.stem for lock in LOCKED}
    assert listed


def modules_imported(path):
    """The modules that a file imports, by their full names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_needed(module, seen):
    """What is not ours and has to be installed for a module of ours to be imported."""
    path = ROOT / (module.replace(".", "/") + ".py")
    if module in seen or not path.exists():
        return
    seen.add(module)
    for imported in modules_imported(path):
        root = imported.partition(".")[0]
        if root in {"benchmarks", "models"}:
            yield from packages_needed(imported, seen)
        elif root not in sys.stdlib_module_names:
            yield root


def test_peers_have_what_the_function_that_they_serve_imports():
    seen = set()
    needed = set(packages_needed("benchmarks.serving.function", seen))
    assert "models.packed" in seen
    wanted = (environments.LOCKS / "function.txt").read_text(encoding="utf-8")
    given = re.findall(r"^([a-z-]+)", wanted, re.MULTILINE)
    assert needed <= {name.removesuffix("-checkpoint") for name in given}

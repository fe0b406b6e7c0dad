import os
import shutil
import stat

import pytest

from models.copying import copy_bundles, main


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


def files(root):
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_everything_is_copied_into_a_directory_that_is_not_there_yet(tiny_checkpoints, target):
    names = ["causal-lm/1", "masked-lm/1", "perceiver/1", "reversal/1"]
    assert copy_bundles(tiny_checkpoints, target) == names
    assert files(target) == files(tiny_checkpoints)


def test_a_copy_can_be_loaded(tiny_checkpoints, target):
    from models.checkpoint import load_model
    from models.directories import find_bundles

    copy_bundles(tiny_checkpoints, target)
    assert load_model(find_bundles(target)["reversal"]).card.name == "reversal"


def test_what_is_there_stays_and_only_what_is_missing_comes(tiny_checkpoints, target):
    own = target / "reversal" / "1" / "model.json"
    own.parent.mkdir(parents=True)
    own.write_text("of my own")
    assert "reversal/1" not in copy_bundles(tiny_checkpoints, target)
    assert own.read_text() == "of my own"
    assert copy_bundles(tiny_checkpoints, target) == []


def test_a_copy_that_breaks_off_leaves_nothing_behind(tiny_checkpoints, target, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ValueError, match=r"target: .*No space left on device"):
        copy_bundles(tiny_checkpoints, target)
    assert files(target) == {}
    assert [path.name for path in (target / "causal-lm").iterdir()] == []


def test_the_copy_of_what_nobody_may_write_can_be_replaced(tiny_checkpoints, target, tmp_path):
    """In an image everything belongs to root; in a volume it is the user's own."""
    locked = tmp_path / "locked"
    shutil.copytree(tiny_checkpoints, locked)
    for path in locked.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    copy_bundles(locked, target)
    modes = {stat.S_IMODE(os.stat(target / name).st_mode) & 0o600 for name in files(target)}
    assert modes == {0o600}


def test_a_source_without_models_is_told(tmp_path, target, capsys):
    assert main([str(tmp_path), str(target)]) == 1
    assert f"expected NAME/VERSION/model.json under {tmp_path}, found none" in (
        capsys.readouterr().err
    )
    assert not target.exists()


def test_a_target_that_is_no_directory_is_told(tiny_checkpoints, target, capsys):
    target.write_text("a file")
    assert main([str(tiny_checkpoints), str(target)]) == 1
    assert f"target: expected a directory to write to, got {target}" in capsys.readouterr().err


def test_it_says_what_it_copied(tiny_checkpoints, target, capsys):
    assert main([str(tiny_checkpoints), str(target)]) == 0
    assert "reversal/1" in capsys.readouterr().out
    assert main([str(tiny_checkpoints), str(target)]) == 0
    assert "nothing" in capsys.readouterr().out


def test_what_cannot_be_read_is_told_of(tiny_checkpoints, target, monkeypatch, capsys):
    shut = tiny_checkpoints / "reversal"
    monkeypatch.setattr(os, "access", lambda path, mode: path != shut)
    assert main([str(tiny_checkpoints), str(target)]) == 0
    expected = f"warning: source: {shut} cannot be read and is left out\n"
    assert capsys.readouterr().err == expected

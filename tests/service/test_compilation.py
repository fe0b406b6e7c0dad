import logging
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from service import compilation
from service.compilation import CompilationCounter, cache_directory


def compile_anew(factor):
    jax.jit(lambda x: x * factor)(np.float32(1))


def test_the_counter_counts_what_xla_compiles_and_blames_only_what_no_load_asked_for(caplog):
    counter = CompilationCounter()
    with counter.listening():
        compile_anew(1.125)
        assert (counter.total, counter.after_ready) == (1, 0)
        counter.is_ready = True
        with compilation.expected():
            compile_anew(2.125)
        assert (counter.total, counter.after_ready) == (2, 0)
        compile_anew(3.125)
        assert (counter.total, counter.after_ready) == (3, 1)
        assert counter.spent_s > 0
    compile_anew(4.125)
    assert counter.total == 3
    assert "while serving" in caplog.text


def test_a_load_in_one_thread_does_not_excuse_a_compilation_in_another():
    counter = CompilationCounter()
    counter.is_ready = True
    with counter.listening(), compilation.expected():
        other = threading.Thread(target=compile_anew, args=(5.125,))
        other.start()
        other.join()
    assert counter.after_ready == 1


def test_what_was_on_disk_is_counted_beside_what_is_compiled():
    counter = CompilationCounter()
    with counter.listening():
        jax.monitoring.record_event(compilation.LOADED)
    assert (counter.total, counter.loaded) == (0, 1)


def test_the_cache_is_in_a_directory_for_this_machine_and_version(tmp_path):
    directory = cache_directory(str(tmp_path))
    assert directory.parent == tmp_path / "compiled"
    assert jax.__version__ in directory.name
    assert "cpu" in directory.name
    assert list(directory.iterdir()) == []
    assert directory.stat().st_mode & 0o077 == 0


def test_another_cpu_gets_another_directory(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(compilation, "CPU_INFO", info)
    directories = set()
    for flags in ("fpu avx2", "fpu avx2 avx512f"):
        # Clock rates change from one look to the next and must not matter.
        for megahertz in ("2000", "3000"):
            info.write_text(f"model name\t: CPU\nflags\t\t: {flags}\ncpu MHz\t\t: {megahertz}\n")
            directories.add(cache_directory(str(tmp_path)))
    assert len(directories) == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "{tmp}/xdg", "HOME": "{tmp}/home"}, "xdg/triwire"),
        ({"XDG_CACHE_HOME": "", "HOME": "{tmp}/home"}, "home/.cache/triwire"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "{tmp}/home"}, "home/.cache/triwire"),
    ],
)
def test_by_default_it_is_in_the_cache_of_the_user(tmp_path, monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp=tmp_path))
    assert (tmp_path / expected) in cache_directory("auto").parents


def test_it_can_be_switched_off():
    assert cache_directory("off") is None


def no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("kind", ["no home", "a file", "open to all"])
def test_a_place_that_cannot_be_used_is_told_and_nothing_else_fails(
    tmp_path, monkeypatch, caplog, kind
):
    where = tmp_path / "cache"
    if kind == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        where = "auto"
    elif kind == "a file":
        where.write_text("")
    else:
        cache_directory(str(where)).chmod(0o777)
    assert cache_directory(str(where)) is None
    (record,) = [r for r in caplog.records if r.name == "service.compilation"]
    assert record.levelno == logging.WARNING
    assert "nothing that is compiled is kept" in record.getMessage()


def test_a_place_that_cannot_be_written_to_is_told(tmp_path, monkeypatch, caplog):
    # Permissions do not hold root back, so the refusal is played.
    def refuse(self, *_, **__):
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert cache_directory(str(tmp_path)) is None
    assert "Read-only file system" in caplog.text

import logging
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from service import compilation
from service.compilation import CompilationCounter, enable_cache


@pytest.fixture
def configured():
    """What JAX was told of its cache, put back afterwards."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield lambda: jax.config.jax_compilation_cache_dir
    for name, value in before.items():
        jax.config.update(name, value)


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


def test_what_the_disk_cache_answers_is_counted_as_well():
    counter = CompilationCounter()
    with counter.listening():
        compile_anew(6.125)
        compile_anew(6.125)
    assert counter.total == 2
    assert counter.cache_hits == 1


def test_the_cache_is_in_a_directory_for_this_machine_and_version(configured, tmp_path):
    directory = enable_cache(str(tmp_path))
    assert directory.parent == tmp_path / "compiled"
    assert jax.__version__ in directory.name
    assert "cpu" in directory.name
    assert str(directory) == configured()
    assert list(directory.iterdir()) == []
    assert directory.stat().st_mode & 0o077 == 0


def test_another_cpu_gets_another_directory(configured, tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(compilation, "CPU_INFO", info)
    directories = set()
    for flags in ("fpu avx2", "fpu avx2 avx512f"):
        # Clock rates change from one look to the next and must not matter.
        for megahertz in ("2000", "3000"):
            info.write_text(f"model name\t: CPU\nflags\t\t: {flags}\ncpu MHz\t\t: {megahertz}\n")
            directories.add(enable_cache(str(tmp_path)))
    assert len(directories) == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "{tmp}/xdg", "HOME": "{tmp}/home"}, "xdg/triwire"),
        ({"XDG_CACHE_HOME": "", "HOME": "{tmp}/home"}, "home/.cache/triwire"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "{tmp}/home"}, "home/.cache/triwire"),
    ],
)
def test_by_default_it_is_in_the_cache_of_the_user(
    configured, tmp_path, monkeypatch, variables, expected
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp=tmp_path))
    assert (tmp_path / expected) in enable_cache("auto").parents


def test_it_can_be_switched_off(configured):
    assert enable_cache("off") is None
    assert configured() is None


def no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("kind", ["no home", "a file", "open to all"])
def test_a_place_that_cannot_be_used_is_told_and_nothing_else_fails(
    configured, tmp_path, monkeypatch, caplog, kind
):
    where = tmp_path / "cache"
    if kind == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        where = "auto"
    elif kind == "a file":
        where.write_text("")
    else:
        enable_cache(str(where)).chmod(0o777)
        jax.config.update("jax_compilation_cache_dir", None)
    assert enable_cache(str(where)) is None
    assert configured() is None
    (record,) = [r for r in caplog.records if r.name == "service.compilation"]
    assert record.levelno == logging.WARNING
    assert "nothing that is compiled is kept" in record.getMessage()


def test_a_place_that_cannot_be_written_to_is_told(configured, tmp_path, monkeypatch, caplog):
    # Permissions do not hold root back, so the refusal is played.
    def refuse(self, *_, **__):
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert enable_cache(str(tmp_path)) is None
    assert "Read-only file system" in caplog.text

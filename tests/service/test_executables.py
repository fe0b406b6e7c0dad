from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache

from models.checkpoint import Bundle, ModelCard
from models.vocabulary import Vocabulary
from service import executables
from service.compilation import CompilationCounter, leave_out_cache_of_jax
from service.engine import Engine
from service.executables import Executables
from service.programs import Program, Ragged, trial_rows
from service.tasks import PROGRAMS
from tests.service import tiny

GRID = ((1, 4), (2, 4))
CARD = ModelCard(
    name="scaler",
    version=1,
    created=0,
    wiring="none",
    config={"size": 1},
    vocabulary=Vocabulary(symbols=("a",), specials=()),
    limits={"max_len": 4},
)


class Scaler(nnx.Module):
    """Scales every value; counts how often it is traced."""

    num_traces = 0

    def __init__(self, scale=2.0):
        self.scale = nnx.Param(jnp.array(scale))

    def __call__(self, values, lengths):
        type(self).num_traces += 1
        return {"scaled": self.scale[...] * values}


PROGRAM = Program(
    name="scale",
    function=lambda model, *arrays: model(*arrays),
    ragged=Ragged(name="values", dtype=np.float32),
    grid=GRID,
)


@pytest.fixture(scope="module", autouse=True)
def compiled_here():
    """What comes out of JAX's own cache cannot be given out again, so it is off."""
    directory = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    # Whether there is a cache is found out once.
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()


@pytest.fixture
def kept(tmp_path):
    return Executables(tmp_path, jax.devices()[0])


def start(kept, model=None, card=CARD, dtype="float32", programs=(PROGRAM,)):
    engine = Engine(Bundle(card, model or Scaler()), programs, dtype, kept)
    engine.warm_up(lambda shape: None)
    return engine


def scaled(engine):
    (result,) = engine.run("scale", [{"values": np.array([1, 2, 3], np.float32)}])
    return result["scaled"][:3].tolist()


def test_a_second_start_neither_traces_nor_compiles_and_answers_the_same(kept):
    first = start(kept)
    num_traces = Scaler.num_traces
    counter = CompilationCounter()
    with counter.listening():
        second = start(kept)
    assert Scaler.num_traces == num_traces
    assert (counter.total, counter.loaded) == (0, len(GRID))
    assert (first.num_loaded, second.num_loaded) == (0, len(GRID))
    assert scaled(second) == scaled(first) == [2, 4, 6]


@pytest.fixture
def cache_of_jax(tmp_path):
    """JAX's own cache is on, as its variables would have it."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    compilation_cache.reset_cache()
    yield tmp_path / "jax"
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


def test_what_is_kept_runs_though_jax_has_been_given_a_cache(cache_of_jax, tmp_path):
    leave_out_cache_of_jax()
    device = jax.devices()[0]
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        start(Executables(tmp_path / name, device))
    assert start(Executables(tmp_path / "other", device)).num_loaded == len(GRID)
    assert not cache_of_jax.exists()


def test_what_is_kept_serves_other_parameters_of_the_same_shape(kept):
    start(kept)
    retrained = start(kept, Scaler(5.0), replace(CARD, version=2, figures={"loss": 1.0}))
    assert retrained.num_loaded == len(GRID)
    assert scaled(retrained) == [5, 10, 15]


@pytest.mark.parametrize(
    ("card", "dtype"),
    [
        (replace(CARD, config={"size": 2}), "float32"),
        (replace(CARD, wiring="other"), "float32"),
        (replace(CARD, limits={"max_len": 3}), "float32"),
        (replace(CARD, task={"pooling": "mean"}), "float32"),
        (replace(CARD, vocabulary=Vocabulary(symbols=("b",), specials=())), "float32"),
        (CARD, "bfloat16"),
    ],
)
def test_nothing_is_shared_with_what_could_compute_something_else(kept, card, dtype):
    start(kept)
    assert start(kept, card=card, dtype=dtype).num_loaded == 0


def test_a_change_of_our_code_or_of_the_options_of_xla_makes_all_of_it_anew(kept, monkeypatch):
    start(kept)
    monkeypatch.setattr(executables, "_origin", lambda: "another version")
    assert start(kept).num_loaded == 0


def test_the_origin_follows_from_code_and_options(monkeypatch, tmp_path):
    def origin():
        executables._origin.cache_clear()
        return executables._origin()

    found = {origin()}
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    found.add(origin())
    monkeypatch.setattr(executables, "__file__", str(tmp_path / "service" / "executables.py"))
    for text in ("a = 1\n", "a = 2\n"):
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / "models" / "blocks.py").write_text(text)
        found.add(origin())
    executables._origin.cache_clear()
    assert len(found) == 4


def spoil(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("damage", [spoil, lambda content: content[:40], lambda content: b""])
def test_a_damaged_file_is_told_and_made_anew(kept, tmp_path, caplog, damage):
    start(kept)
    for file in tmp_path.iterdir():
        file.write_bytes(damage(file.read_bytes()))
    damaged = start(kept)
    assert damaged.num_loaded == 0
    assert scaled(damaged) == [2, 4, 6]
    assert "is damaged and is compiled anew" in caplog.text
    assert start(kept).num_loaded == len(GRID)


def refuse(*_, **__):
    raise jax.errors.JaxRuntimeError("NOT_FOUND: Function fusion.1 not found")


@pytest.mark.parametrize("fails", ["to load", "to run"])
def test_what_cannot_be_loaded_or_does_not_run_is_compiled_anew(kept, monkeypatch, caplog, fails):
    start(kept)
    load = refuse if fails == "to load" else lambda *_, **__: refuse
    monkeypatch.setattr(executables.serialize_executable, "deserialize_and_load", load)
    engine = start(kept)
    assert engine.num_loaded == 0
    assert scaled(engine) == [2, 4, 6]
    assert "compiled anew: NOT_FOUND: Function fusion.1" in caplog.text


def test_what_cannot_be_kept_is_told_and_serves_all_the_same(tmp_path, caplog):
    engine = start(Executables(tmp_path / "missing", jax.devices()[0]))
    assert scaled(engine) == [2, 4, 6]
    assert "is not kept for the next start" in caplog.text


def test_no_half_written_file_is_left_under_a_name_that_is_looked_for(kept, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(executables.os, "replace", fail)
        start(kept)
    assert list(tmp_path.iterdir()) == []
    assert start(kept).num_loaded == 0
    assert start(kept).num_loaded == len(GRID)


SELDOM = replace(PROGRAM, is_on_demand=True)


def test_what_is_asked_for_seldom_stays_on_disk_until_it_is(kept):
    first = start(kept, programs=[SELDOM])
    second = start(kept, programs=[SELDOM])
    assert (first.num_loaded, second.num_loaded) == (0, len(GRID))
    for engine in (first, second):
        assert engine._compiled == {}
        counter = CompilationCounter()
        with counter.listening():
            assert scaled(engine) == [2, 4, 6]
            assert scaled(engine) == [2, 4, 6]
        assert (counter.total, counter.loaded) == (0, 1)


def test_what_has_been_taken_away_meanwhile_is_compiled_and_counted(kept, tmp_path):
    engine = start(kept, programs=[SELDOM])
    for file in tmp_path.iterdir():
        file.unlink()
    counter = CompilationCounter()
    counter.is_ready = True
    with counter.listening():
        assert scaled(engine) == [2, 4, 6]
    assert counter.after_ready == 1


def test_without_a_place_everything_is_in_memory():
    nowhere = Executables(None, jax.devices()[0])
    assert len(start(nowhere, programs=[SELDOM])._compiled) == len(GRID)


@pytest.mark.parametrize("card", tiny.cards(), ids=lambda card: card.name)
def test_the_programs_of_every_wiring_can_be_kept(kept, card):
    smallest = [replace(program, grid=program.grid[:1]) for program in PROGRAMS[card.wiring](card)]
    bundle = Bundle(card, tiny.model(card))
    first, second = (Engine(bundle, smallest, "float32", kept) for _ in range(2))
    for engine in (first, second):
        engine.warm_up(lambda shape: None)
    for name, program in second.programs.items():
        second.run(name, trial_rows(program, *program.grid[0]))
    assert second.num_loaded == second.num_shapes == len(smallest)

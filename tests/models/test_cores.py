import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from models import cores
from models.cores import Cores

PATIENCE_S = 60.0

ALL = [2, 5]


@pytest.fixture
def held(monkeypatch):
    """What every thread holds, on a machine of two cores; None where it has held nothing yet."""
    found = {}

    def hold(_, affinity):
        found[threading.get_ident()] = sorted(affinity)

    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(ALL), raising=False)
    monkeypatch.setattr(cores.os, "sched_setaffinity", hold, raising=False)
    monkeypatch.setattr(cores, "num_cores", lambda: len(ALL))
    return found


def side_by_side(chosen):
    """The idents of two threads that ran calls at the same time, then of one that ran alone."""
    meeting = threading.Barrier(2)

    def call():
        meeting.wait(PATIENCE_S)
        return threading.get_ident()

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(chosen.run, call) for _ in range(2)]
        yield [one.result(PATIENCE_S) for one in both]
        yield threads.submit(chosen.run, threading.get_ident).result(PATIENCE_S)


def test_calls_side_by_side_leave_every_thread_with_a_core_of_its_own(held):
    both = next(side_by_side(Cores(2)))
    assert sorted(held[ident] for ident in both) == [[2], [5]]


def test_a_call_alone_sets_its_thread_free_and_the_next_ones_change_nothing(held):
    steps = side_by_side(Cores(2))
    both, one = next(steps), next(steps)
    (other,) = set(both) - {one}
    assert held[one] == ALL
    assert len(held[other]) == 1


def test_what_is_always_alone_holds_nothing(held):
    chosen = Cores(2)
    assert chosen.run(lambda one, other: one + other, 3, 4) == 7
    assert held == {}


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_that_are_not_as_many_as_cores_hold_nothing(held, num_threads):
    list(side_by_side(Cores(num_threads)))
    assert held == {}


def test_where_a_quota_gives_less_than_all_cores_nothing_is_held(held, monkeypatch):
    monkeypatch.setattr(cores, "num_cores", lambda: 1)
    list(side_by_side(Cores(2)))
    assert held == {}


def test_what_fails_is_told_and_the_next_call_runs(held):
    chosen = Cores(2)
    with pytest.raises(ZeroDivisionError):
        chosen.run(lambda: 1 / 0)
    with ThreadPoolExecutor(1) as another:
        assert another.submit(chosen.run, lambda: 1).result(PATIENCE_S) == 1
    # What has failed is no company of what runs later.
    assert held == {}


def test_where_it_is_forbidden_calls_run_all_the_same(held, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(cores.os, "sched_setaffinity", refuse)
    assert len(set(next(side_by_side(Cores(2))))) == 2


@pytest.mark.parametrize(
    ("quota", "count"), [("max 100000", 4), ("200000 100000", 2), ("150000 100000", 2)]
)
def test_cores_are_those_that_the_process_may_use(quota, count, monkeypatch, tmp_path):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    assert cores.num_cores() == 4
    cores.QUOTA.write_text(f"{quota}\n", encoding="ascii")
    assert cores.num_cores() == count


def test_a_quota_below_one_core_is_one_core(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    cores.QUOTA.write_text("1000 100000\n", encoding="ascii")
    assert cores.num_cores() == 1


@pytest.mark.parametrize(("quota", "count"), [("-1", 4), ("200000", 2), ("150000", 2), ("1", 1)])
def test_a_quota_is_found_in_the_older_kind_of_groups_too(quota, count, monkeypatch, tmp_path):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(cores, "OLD_QUOTA", tmp_path)
    (tmp_path / "cpu.cfs_quota_us").write_text(f"{quota}\n", encoding="ascii")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n", encoding="ascii")
    assert cores.num_cores() == count


def test_calls_run_side_by_side_unless_the_environment_says_how_many_threads(monkeypatch):
    told = []
    monkeypatch.setattr(jax.config, "update", lambda *change: told.append(change))
    monkeypatch.setenv(cores.POOL_SIZE, "3")
    assert not cores.run_calls_side_by_side()
    assert (os.environ[cores.POOL_SIZE], told) == ("3", [])
    monkeypatch.delenv(cores.POOL_SIZE)
    assert cores.run_calls_side_by_side()
    assert (os.environ[cores.POOL_SIZE], told) == ("1", [("jax_cpu_enable_async_dispatch", False)])
    monkeypatch.delenv(cores.POOL_SIZE)
    assert cores.run_calls_side_by_side(2)
    assert os.environ[cores.POOL_SIZE] == "2"


# What this is all for, in a process of its own, as the options hold for a process as a whole.
SIDE_BY_SIDE = """
import time

from models import cores

assert cores.run_calls_side_by_side()
import jax
import jax.numpy as jnp

matrix = jnp.zeros((512, 512))
# Many operations are ready at once, which would otherwise go to the pool.
function = jax.jit(lambda x: sum(jnp.sin(x + i) @ x for i in range(20)))
options = cores.compiler_options(jax.devices()[0])
compiled = function.lower(matrix).compile(compiler_options=options)
assert compiled(matrix).is_ready()
before = time.thread_time(), time.process_time()
for _ in range(3):
    compiled(matrix)
mine, everybodys = time.thread_time() - before[0], time.process_time() - before[1]
assert mine > 0.9 * everybodys, (mine, everybodys)
"""


def test_a_call_is_done_when_it_returns_as_its_own_thread_has_computed_it():
    # As a service has it, without what tests set for themselves.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (cores.POOL_SIZE, "XLA_FLAGS")
    }
    done = subprocess.run(
        [sys.executable, "-c", SIDE_BY_SIDE],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_a_thread_gives_way_and_no_other_thread_of_its_process_does():
    found = {}

    def work():
        found["has"] = cores.give_way()
        found["own"] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found["has"]
    assert found["own"] == max(before, cores.NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_where_priorities_are_not_to_be_had_nothing_happens(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(cores.os, "setpriority", refuse)
    assert not cores.give_way()
    monkeypatch.setattr(cores.sys, "platform", "darwin")
    assert not cores.give_way()

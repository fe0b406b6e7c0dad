import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from service import cores
from service.cores import Cores
from tests.service.fakes import PATIENCE_S

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
    assert chosen.run(lambda: 1) == 1


def test_where_it_is_forbidden_calls_run_all_the_same(held, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(cores.os, "sched_setaffinity", refuse)
    assert len(set(next(side_by_side(Cores(2))))) == 2

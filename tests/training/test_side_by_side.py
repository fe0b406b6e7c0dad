import subprocess
import sys

import pytest

from training import side_by_side
from training.cli import Interrupted
from training.devices import DevicesError


class Other(subprocess.Popen):
    """Stands for a process that ends as it is told to; none is started."""

    def __init__(self, status=0):
        self.status, self.is_killed, self.is_awaited = status, False, False

    def wait(self, timeout=None):
        self.is_awaited = True
        return self.status

    def kill(self):
        self.is_killed = True


@pytest.fixture
def others(monkeypatch):
    """What was done, in order, and the processes that were started."""
    started, done = [], []
    statuses = {}

    def start(arguments, *several):
        started.append((arguments, several, Other(statuses.get(len(started), 0))))
        return started[-1][2]

    monkeypatch.setattr(side_by_side, "_start", start)
    monkeypatch.setattr(side_by_side, "join_processes", lambda *several: done.append(several))
    monkeypatch.setattr(side_by_side.jax.distributed, "shutdown", lambda: done.append("left"))
    monkeypatch.setenv("NPROC", "")
    return started, done, statuses


def test_the_others_run_the_same_command_as_processes_of_their_own():
    command = side_by_side.command_of(["masked-lm", "--cpu-processes", "2"], "127.0.0.1:9", 2, 1)
    assert command[:4] == (sys.executable, "-m", "training", "masked-lm")
    options = list(command[4:])
    assert options[:4] == ["--cpu-processes", "2", "--cpu-processes", "1"]
    assert options[4:] == [
        *("--coordinator", "127.0.0.1:9"),
        *("--num-processes", "2"),
        *("--process-id", "1"),
    ]


def test_a_run_of_three_starts_two_more_and_leaves_with_them(others):
    started, done, _ = others
    with side_by_side.side_by_side(["reversal"], 3, (Interrupted,)):
        assert [several[1:] for _, several, _ in started] == [(3, 1), (3, 2)]
        assert [several[1:] for several in done] == [(3, 0)]
        assert {several[0] for _, several, _ in started} == {done[0][0]}
    assert done[1:] == ["left"]
    assert all(other.is_awaited and not other.is_killed for _, _, other in started)


def test_what_stops_all_of_them_lets_all_end_by_themselves(others):
    started, done, _ = others
    with pytest.raises(Interrupted), side_by_side.side_by_side([], 2, (Interrupted,)):
        raise Interrupted(1, 15)
    assert done[1:] == ["left"]
    assert not started[0][2].is_killed


def test_where_this_process_fails_alone_the_others_are_ended(others):
    started, done, _ = others
    with pytest.raises(OSError, match="full"), side_by_side.side_by_side([], 2, (Interrupted,)):
        raise OSError("full")
    assert started[0][2].is_killed
    assert done[1:] == []


def test_where_another_process_fails_the_run_has_failed(others):
    _, _, statuses = others
    statuses[1] = 3
    with (
        pytest.raises(DevicesError, match=r"end with status 0, got \[3\]"),
        side_by_side.side_by_side([], 3, (Interrupted,)),
    ):
        pass


def test_processes_of_its_own_beside_those_of_others_are_refused(command):
    several = ["--coordinator", "127.0.0.1:1", "--num-processes", 2, "--process-id", 0]
    status, _, told = command("reversal", "--preset", "debug", "--cpu-processes", 2, *several)
    assert status == 1
    assert "--cpu-processes: expected none of its own beside --coordinator" in told

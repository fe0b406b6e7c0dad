import os
import subprocess
import sys
import time

from benchmarks.serving import trees

PARENT = (
    "import subprocess, sys;"
    "child = subprocess.Popen(['sleep', '100'], start_new_session=True);"
    "print(child.pid, flush=True); child.wait()"
)


def state(process):
    with open(f"/proc/{process}/stat", encoding="utf-8") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def has_ended(process):
    """Whether it is gone, or somebody whom it was left to has yet to notice that it has ended."""
    try:
        return state(process) in "ZX"
    except OSError:
        return True


def comes_true(condition):
    """Signals take a moment."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def test_a_process_and_its_children_are_paused_resumed_and_ended_together():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout
    child = int(parent.stdout.readline())
    try:
        assert trees.tree(parent.pid) == [parent.pid, child]
        assert trees.held_mib(parent.pid) > 1
        trees.pause(parent.pid)
        assert comes_true(lambda: [state(parent.pid), state(child)] == ["T", "T"])
        trees.resume(parent.pid)
        assert comes_true(lambda: "T" not in [state(parent.pid), state(child)])
    finally:
        trees.end(parent)
        parent.stdout.close()
    assert parent.poll() is not None
    assert comes_true(lambda: has_ended(child))


def test_what_a_process_has_spent_only_grows():
    before = trees.spent_s(os.getpid())
    assert 0 < before <= trees.spent_s(os.getpid())

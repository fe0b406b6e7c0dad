"""A process with all that it has started: what it holds, what it spends, and having it wait."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

PROC = Path("/proc")
PATIENCE_S = 20.0


def tree(root: int) -> list[int]:
    """The process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for process in found:
        found += sorted(children.get(process, []))
    return found


def held_mib(root: int) -> float:
    """The memory that they hold, in MiB; what several share counts once."""
    return sum(map(_proportional_kib, tree(root))) / 1024


def spent_s(root: int) -> float:
    """Seconds of the CPU that those which still run have taken so far."""
    ticks = 0
    for process in tree(root):
        if fields := _stat(process):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pause(root: int) -> None:
    """Has them take nothing of the CPU until they are resumed."""
    for process in tree(root):
        _signal(process, signal.SIGSTOP)


def resume(root: int) -> None:
    """Has them go on."""
    for process in reversed(tree(root)):
        _signal(process, signal.SIGCONT)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends them: asks the first, and kills what is left once it is gone or will not go."""
    resume(process.pid)
    members = tree(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=PATIENCE_S)
    started = {member: _started(member) for member in members}
    time.sleep(0.1)
    for member in members:
        # A number that was given out again would have another start.
        if started[member] and _started(member) == started[member]:
            _signal(member, signal.SIGKILL)
    process.wait()


def _stat(process: int) -> list[str]:
    """The fields of a process after its name, from its state on; none once it is gone."""
    try:
        line = (PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return line.rpartition(")")[2].split()


def _started(process: int) -> str:
    fields = _stat(process)
    return fields[19] if fields and fields[0] != "Z" else ""


def _proportional_kib(process: int) -> int:
    try:
        lines = (PROC / str(process) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)

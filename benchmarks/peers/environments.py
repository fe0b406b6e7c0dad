"""Virtual environments of peers, made from locked lists when they are first needed.

    .venv/bin/python -m benchmarks.peers.environments torch onnxruntime

What a peer needs is in NAME.in and, with versions and hashes, in NAME.lock; ``make lock-peers``
renews the locks. Environments are kept in ``.venv-peers``, or in the directory that
``TRIWIRE_PEERS`` names, and made anew when their lock changes.

Some peers have a lighter variant, which not every place that pip is set up for has: PyPI's PyTorch
for Linux brings libraries for GPUs along, PyTorch's own CPU build does not. The first variant that
can be installed is taken, and standard error tells which.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

LOCKS = Path(__file__).parent
DIRECTORY_VARIABLE = "TRIWIRE_PEERS"
DEFAULT_DIRECTORY = LOCKS.parent.parent / ".venv-peers"
# Peers with variants, in the order in which they are tried; any other has one lock of its name.
VARIANTS = {"torch": ("torch-cpu", "torch")}
# Says, in a finished environment, what it was made from.
STAMP = "made-from"


class PeerError(RuntimeError):
    """A peer's environment could not be made."""


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there or out of date.

    Raises:
        PeerError: if there is no lock of that name, or nothing that it lists can be installed.
    """
    locks = locks_of(name)
    directory = _directory() / name
    directory.parent.mkdir(parents=True, exist_ok=True)
    python = directory / "bin" / "python"
    with _alone(directory):
        if _is_current(directory, locks):
            return python
        _make(directory, name, locks)
    return python


def locks_of(name: str) -> list[Path]:
    """The locked lists of a peer, in the order in which they are tried.

    Raises:
        PeerError: if there is none.
    """
    locks = [LOCKS / f"{variant}.lock" for variant in VARIANTS.get(name, (name,))]
    missing = [lock.name for lock in locks if not lock.is_file()]
    if missing:
        known = sorted(lock.stem for lock in LOCKS.glob("*.lock"))
        raise PeerError(f"peer: expected one of {known}, got {name!r}: no {', '.join(missing)}")
    return locks


def _directory() -> Path:
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY).resolve()


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process at a time makes an environment; the others wait and find it."""
    with open(f"{directory}.wait", "w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _is_current(directory: Path, locks: list[Path]) -> bool:
    stamp = directory / STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8") in map(_stamp_of, locks)


def _stamp_of(lock: Path) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{lock.name} {hashlib.sha256(lock.read_bytes()).hexdigest()} Python {version}\n"


def _make(directory: Path, name: str, locks: list[Path]) -> None:
    failures = []
    for lock in locks:
        _tell(f"{name}: installing {lock.name} into {directory}, once")
        if directory.exists():
            shutil.rmtree(directory)
        venv.create(directory, with_pip=True)
        status = _install(directory / "bin" / "python", lock)
        if status == 0:
            (directory / STAMP).write_text(_stamp_of(lock), encoding="utf-8")
            return
        failures.append(f"pip ended with status {status} on {lock.name}")
        _tell(f"{name}: {failures[-1]}")
    shutil.rmtree(directory)
    raise PeerError(f"{name}: {'; '.join(failures)}; what pip said stands above")


def _install(python: Path, lock: Path) -> int:
    """Installs what is locked, told on standard error."""
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--require-hashes"]
    return subprocess.run([*command, "-r", lock], stdout=sys.stderr, check=False).returncode


def _tell(line: str) -> None:
    sys.stderr.write(f"peers: {line}\n")
    sys.stderr.flush()


def main() -> None:
    """Makes the environments that are named, or all, and prints their interpreters."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="peers (default: all)")
    variants = {variant for peer, names in VARIANTS.items() for variant in names if variant != peer}
    everyone = sorted({lock.stem for lock in LOCKS.glob("*.lock")} - variants)
    try:
        for name in parser.parse_args().names or everyone:
            sys.stdout.write(f"{name}: {python_of(name)}\n")
    except PeerError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()

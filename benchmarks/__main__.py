"""All measurements, one after another, and the page that tells them.

    .venv/bin/python -m benchmarks
    .venv/bin/python -m benchmarks --only forward decode

Each is ``python -m benchmarks.NAME``, which writes runs/benchmarks/NAME.json. What has been
measured, now or before, goes into docs/benchmarks.md with its pictures; a trial goes nowhere.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import page

NAMES = ("forward", "parts", "decode", "latents", "train", "serve", "start")
DIRECTORY = Path("runs") / "benchmarks"


def main() -> None:
    """Measures what is chosen; the status tells whether all of it could be."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    parser.add_argument("--quick", action="store_true", help="little of everything, to try it out")
    options = parser.parse_args()
    failed = [name for name in options.only if not _measure(name, is_quick=options.quick)]
    if not options.quick:
        page.renew(page.PAGE, DIRECTORY)
    if failed:
        raise SystemExit(f"error: no measurement of {', '.join(failed)}; what went wrong is above")


def _measure(name: str, *, is_quick: bool) -> bool:
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    command += ["--quick"] if is_quick else ["--out", str(DIRECTORY / f"{name}.json")]
    sys.stderr.write(f"benchmarks: {' '.join(command[1:])}\n")
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    main()

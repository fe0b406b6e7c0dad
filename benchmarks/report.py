"""What measurements have in common: the machine they ran on, medians with spread, JSON, tables."""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What matrices may be multiplied in instead of float32.
NARROW = "bfloat16"


def machine(*libraries: str) -> dict[str, Any]:
    """Where and with what something was measured."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return {
        "cpu": ", ".join(sorted(names)) or platform.processor(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "command": " ".join(["python", "-m", *_module(), *sys.argv[1:]]),
        **{name: importlib.metadata.version(name) for name in libraries},
    }


def _module() -> list[str]:
    spec = sys.modules["__main__"].__spec__
    return [spec.name] if spec else [Path(sys.argv[0]).name]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, least and the quartiles around the median of measurements that were interleaved."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3
    return {"median": middle, "min": min(values), "q1": low, "q3": high, "count": len(values)}


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as a table in Markdown; numbers to three digits, large ones to a tenth."""
    lines = [header, ["---"] * len(header), *([_written(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _written(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.3g}" if abs(cell) < 1000 else f"{cell:.1f}"


def arguments(docstring: str | None) -> argparse.ArgumentParser:
    """What every measurement takes: where the JSON goes, and whether it is only tried out."""
    parser = argparse.ArgumentParser(description=(docstring or "").partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, help="where the JSON goes")
    parser.add_argument("--quick", action="store_true", help="little of everything, to try it out")
    return parser


def write(out: Path | None, results: Mapping[str, Any], told: str) -> None:
    """The table to standard output, everything as JSON, the table too, to ``out``."""
    sys.stdout.write(told + "\n")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        whole = json.dumps({**results, "table": told}, indent=2)
        out.write_text(whole + "\n", encoding="utf-8")


def compare(
    taken: Mapping[str, Sequence[Sequence[float]]], ours: str, peers: Sequence[str]
) -> dict[str, Any]:
    """What ``take_turns`` gave: by name the medians of the rounds, and how fast ours is.

    ``speed`` says how many times as fast ours is as the fastest peer, the one with the least
    median, taken round by round: both saw the same machine then.
    """
    medians = {name: [statistics.median(turn) for turn in turns] for name, turns in taken.items()}
    found = {
        name: {**summary(medians[name]), "least": min(min(turn) for turn in taken[name])}
        for name in taken
    }
    fastest = min(peers, key=lambda name: found[name]["median"])
    pairs = zip(medians[fastest], medians[ours], strict=True)
    return {
        "contestants": found,
        "fastest_peer": fastest,
        "speed": summary([theirs / own for theirs, own in pairs]),
    }


def compare_widths(
    taken: Mapping[str, Sequence[Sequence[float]]], ours: str, peers: Sequence[str]
) -> dict[str, Any]:
    """``compare`` of those in float32, and as ``narrow`` how fast ours is in ``NARROW``.

    That is held against the fastest peer in any width: with narrow numbers, some are slower.
    """
    everyone = [*peers, *(name for name in map(narrowed, peers) if name in taken)]
    narrow = compare(taken, narrowed(ours), everyone)
    told = {name: narrow[name] for name in ("fastest_peer", "speed")}
    return compare(taken, ours, peers) | {"narrow": told}


def narrowed(name: str) -> str:
    """What a contestant is called that multiplies matrices in ``NARROW``."""
    return f"{name} {NARROW}"


def width_of(name: str) -> str:
    """What the contestant of that name multiplies matrices in."""
    return NARROW if name.endswith(narrowed("")) else "float32"


def spread(found: Mapping[str, float]) -> str:
    """A median with its quartiles, as text."""
    return f"{found['median']:.3g} ({found['q1']:.3g}..{found['q3']:.3g})"

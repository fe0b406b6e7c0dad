"""Reading N vectors into 64 latents, against letting all of them read each other.

    .venv/bin/python -m benchmarks.latents -o runs/benchmarks/latents.json

Our Perceiver is that of the service with random parameters and room for longer inputs: one row of
vectors, position features and all. The same is written in PyTorch. Full self-attention runs the
Perceiver's two blocks over the input itself, in ours and with PyTorch's fused attention, which
keeps no N x N weights. Ours keeps them, so it stops at 8,192. All take turns; each has a process.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from benchmarks import report, weights
from benchmarks.peers.processes import Contestant, Process, running, take_turns
from training.cost_curve import growth_exponent

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
LONG = 2048
OURS, TORCH = "Perceiver, ours", "Perceiver, torch"
FULL, FULL_TORCH = "self-attention, ours", "self-attention, torch"
EVERYONE = (OURS, TORCH, FULL, FULL_TORCH)
# Weights of 4 heads for all pairs take 4 GiB at twice that, in each of several copies.
MAX_LENGTH = {FULL: 8192}
CHECKED_LENGTH = 256
# Sines of angles up to 800 in float32 are this far off by themselves.
TOLERANCE = 1e-3


def our_side(name: str, lengths: Sequence[int]) -> Contestant:
    """Ours; self-attention with whatever threads XLA has, which suit large matrices."""
    fitting = [length for length in lengths if length <= MAX_LENGTH.get(name, length)]
    return Contestant(
        name=name,
        module="benchmarks.ours.reader",
        environment={"JAX_PLATFORMS": "cpu"},
        setting={
            "is_perceiver": name == OURS,
            "lengths": fitting,
            "max_input_len": max(LENGTHS),
        },
    )


def torch_side(name: str, path: str) -> Contestant:
    """The same in PyTorch."""
    return Contestant(
        name=name,
        module="benchmarks.peers.torch_reader",
        peer="torch",
        setting={"weights": path, "is_perceiver": name == TORCH},
    )


@contextmanager
def everyone(lengths: Sequence[int]) -> Iterator[tuple[dict[str, Process], weights.Arrays]]:
    """All contestants, and the weights that they share."""
    with ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory()) + "/weights.npz"
        ours = stack.enter_context(running([our_side(name, lengths) for name in (OURS, FULL)]))
        ours[OURS].call("export", path=path)
        torch = stack.enter_context(
            running([torch_side(name, path) for name in (TORCH, FULL_TORCH)])
        )
        yield {name: {**ours, **torch}[name] for name in EVERYONE}, dict(np.load(path))


def check(processes: Mapping[str, Process], arrays: weights.Arrays) -> dict[str, float]:
    """By how much the latents of each Perceiver differ from plain arithmetic, at most.

    Raises:
        SystemExit: if by more than rounding.
    """
    width = arrays["latents"].shape[1]
    vectors = np.random.default_rng(0).normal(size=(CHECKED_LENGTH, width)).astype(np.float32)
    expected = weights.latents(arrays, vectors[None].astype(np.float64))[0]
    found = {}
    for name in (OURS, TORCH):
        output = processes[name].call("output", vectors=vectors.tolist())
        found[name] = float(np.abs(output - expected).max())
        if not found[name] < TOLERANCE:
            raise SystemExit(f"{name}: expected latents to {TOLERANCE}, got {found[name]} off")
    return found


def measure(num_rounds: int, lengths: Sequence[int]) -> dict[str, Any]:
    """Time and memory of everybody at every length."""
    machine = report.machine("jax", "numpy")
    with everyone(lengths) as (processes, arrays):
        differences = check(processes, arrays)
        machine["torch"] = processes[TORCH].call("version")
        work = [{"length": n, **at_length(processes, n, num_rounds)} for n in lengths]
    return {
        "machine": machine,
        "largest_difference": differences,
        "work": work,
        "exponents": {name: exponents(work, name) for name in EVERYONE},
    }


def at_length(processes: Mapping[str, Process], length: int, num_rounds: int) -> dict[str, Any]:
    """Milliseconds and MiB of those who can, and how many times as fast as each ours is."""
    able = {n: p for n, p in processes.items() if length <= MAX_LENGTH.get(n, length)}
    memory = {name: process.call("memory", length=length) for name, process in able.items()}
    num_calls = max(1, min(10, 8192 // length))

    def turn(name: str) -> list[float]:
        # A call that takes seconds is not made twice to warm caches that it overflows.
        num_warm = int(length < LONG or name in (OURS, TORCH))
        return able[name].call("turn", length=length, num_calls=num_calls, num_warm=num_warm)

    taken = take_turns({name: lambda n=name: turn(n) for name in able}, num_rounds)
    compared = {name: report.compare(taken, OURS, [name])["speed"] for name in able if name != OURS}
    times = report.compare(taken, OURS, [TORCH])["contestants"]
    return {"contestants": times, "memory_mib": memory, "speed_against": compared}


def exponents(work: Sequence[Mapping[str, Any]], name: str) -> dict[str, float | None]:
    """The power of N by which somebody's time grows, over all lengths and over the long ones."""
    found: dict[str, float | None] = {}
    for part, shortest in (("all", 0), ("long", LONG)):
        points = [
            (at["length"], at["contestants"][name]["median"])
            for at in work
            if at["length"] >= shortest and name in at["contestants"]
        ]
        lengths, times = zip(*points, strict=True) if points else ((), ())
        found[part] = growth_exponent(lengths, list(times)) if len(points) > 1 else None
    return found


def table(results: Mapping[str, Any]) -> str:
    """Milliseconds by length, then how many times as fast ours is, memory and the exponents."""
    times, others = [], []
    for at in results["work"]:
        found, speed, memory = at["contestants"], at["speed_against"], at["memory_mib"]
        times.append([at["length"], *(_cell(found, name, report.spread) for name in EVERYONE)])
        ratios = [_cell(speed, name, lambda one: one["median"]) for name in EVERYONE[1:]]
        held = [_cell(memory, name, float) for name in EVERYONE]
        others.append([at["length"], *ratios, *held])
    header = [f"faster than {name}" for name in EVERYONE[1:]]
    header += [f"{name} (MiB)" for name in EVERYONE]
    grown = [
        [name, *("" if value is None else value for value in found.values())]
        for name, found in results["exponents"].items()
    ]
    tables = (
        report.table(["N", *(f"{name} (ms)" for name in EVERYONE)], times),
        report.table(["N", *header], others),
        report.table(["time grows as N to the", "all N", f"N >= {LONG}"], grown),
    )
    return "\n\n".join(tables)


def _cell(found: Mapping[str, Any], name: str, written: Callable[[Any], Any]) -> Any:
    """What was found of somebody; empty where that was too long for them."""
    return written(found[name]) if name in found else ""


def main() -> None:
    """Measures and tells."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (default: 7)")
    options = parser.parse_args()
    num_rounds, lengths = (2, LENGTHS[:2]) if options.quick else (options.rounds, LENGTHS)
    results = measure(num_rounds, lengths)
    report.write(options.out, results, table(results))


if __name__ == "__main__":
    main()

"""Reading N vectors into 64 latents, against letting all of them read each other.

    .venv/bin/python -m benchmarks.latents -o runs/benchmarks/latents.json

Our Perceiver is that of the service with random parameters and room for longer inputs: one row of
vectors, position features and all, which all threads share. The same is written in PyTorch. Full
self-attention runs the Perceiver's two blocks over the input itself, in ours and with PyTorch's
fused attention, which keeps no N x N weights. Ours keeps them, so it stops at 8,192. What is served
and PyTorch's also multiply matrices in bfloat16; ours is held against the fastest in any width
there. All take turns; each has a process.
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
WIDE = (OURS, TORCH, FULL, FULL_TORCH)
# With matrices multiplied in bfloat16.
OURS_NARROW, TORCH_NARROW, FULL_TORCH_NARROW = NARROW = tuple(
    report.narrowed(name) for name in (OURS, TORCH, FULL_TORCH)
)
EVERYONE = (*WIDE, *NARROW)
# What ours in bfloat16 is held against, each time the fastest.
NARROW_PEERS = {
    TORCH: (TORCH, TORCH_NARROW),
    FULL: (FULL,),
    FULL_TORCH: (FULL_TORCH, FULL_TORCH_NARROW),
}
OUR_SIDE = (OURS, FULL, OURS_NARROW)
# Weights of 4 heads for all pairs take 4 GiB at twice that, in each of several copies.
MAX_LENGTH = {FULL: 8192}
CHECKED_LENGTH = 256
# Sines of angles up to 800 in float32 are this far off by themselves; latents are about 1, and
# bfloat16 keeps 8 bits of what goes into each of a dozen products.
TOLERANCES = {"float32": 1e-3, report.NARROW: 0.1}


def our_side(name: str, lengths: Sequence[int]) -> Contestant:
    """Ours; self-attention with whatever threads XLA has, which suit large matrices."""
    fitting = [length for length in lengths if length <= MAX_LENGTH.get(name, length)]
    return Contestant(
        name=name,
        module="benchmarks.ours.reader",
        environment={"JAX_PLATFORMS": "cpu"},
        setting={
            "is_perceiver": name != FULL,
            "dtype": report.width_of(name),
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
        setting={
            "weights": path,
            "is_perceiver": name in (TORCH, TORCH_NARROW),
            "dtype": report.width_of(name),
        },
    )


@contextmanager
def everyone(lengths: Sequence[int]) -> Iterator[tuple[dict[str, Process], weights.Arrays]]:
    """All contestants, and the weights that they share."""
    with ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory()) + "/weights.npz"
        ours = stack.enter_context(running([our_side(name, lengths) for name in OUR_SIDE]))
        ours[OURS].call("export", path=path)
        theirs = [torch_side(name, path) for name in EVERYONE if name not in OUR_SIDE]
        torch = stack.enter_context(running(theirs))
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
    for name in (OURS, TORCH, OURS_NARROW, TORCH_NARROW):
        tolerance = TOLERANCES[report.width_of(name)]
        output = processes[name].call("output", vectors=vectors.tolist())
        found[name] = float(np.abs(output - expected).max())
        if not found[name] < tolerance:
            raise SystemExit(f"{name}: expected latents to {tolerance}, got {found[name]} off")
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
        num_warm = int(length < LONG or "Perceiver" in name)
        return able[name].call("turn", length=length, num_calls=num_calls, num_warm=num_warm)

    taken = take_turns({name: lambda n=name: turn(n) for name in able}, num_rounds)
    peers = {name: [peer for peer in of if peer in able] for name, of in NARROW_PEERS.items()}
    return {
        "contestants": report.compare(taken, OURS, [TORCH])["contestants"],
        "memory_mib": memory,
        "speed_against": {
            name: report.compare(taken, OURS, [name])["speed"] for name in WIDE[1:] if name in able
        },
        "narrow_against": {
            name: report.compare(taken, OURS_NARROW, of)["speed"]
            for name, of in peers.items()
            if of
        },
    }


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
    times, others, narrow = [], [], []
    for at in results["work"]:
        found, speed, memory = at["contestants"], at["speed_against"], at["memory_mib"]
        times.append([at["length"], *(_cell(found, name, report.spread) for name in WIDE)])
        ratios = [_cell(speed, name, _median) for name in WIDE[1:]]
        others.append([at["length"], *ratios, *(_cell(memory, name, float) for name in WIDE)])
        ratios = [_cell(at["narrow_against"], name, _median) for name in NARROW_PEERS]
        spreads = (_cell(found, name, report.spread) for name in NARROW)
        narrow.append([at["length"], *spreads, *ratios])
    faster = [f"faster than {name}" for name in WIDE[1:]]
    grown = [
        [name, *("" if value is None else value for value in found.values())]
        for name, found in results["exponents"].items()
    ]
    tables = (
        report.table(["N", *(f"{name} (ms)" for name in WIDE)], times),
        report.table(["N", *faster, *(f"{name} (MiB)" for name in WIDE)], others),
        report.table(["N", *(f"{name} (ms)" for name in NARROW), *faster], narrow),
        report.table(["time grows as N to the", "all N", f"N >= {LONG}"], grown),
    )
    return "\n\n".join(tables)


def _median(found: Mapping[str, float]) -> float:
    return found["median"]


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

"""The forward pass of the masked encoder: ours beside PyTorch and ONNX Runtime on the same weights.

    .venv/bin/python -m benchmarks.forward -o runs/benchmarks/forward.json

Two kinds of work: all logits of a batch, and from token ids to the five likeliest symbols at one
mask of every row, for which ours computes what the masks need and the others everything, as
pipelines do. All compute in float32; ours and `torch.compile` also with matrices multiplied in
bfloat16, which is held against the fastest in any width. Before anything is timed, all must give
the logits of plain arithmetic, as far as their width goes. Everybody is a process of its own with a
thread for every core; they take turns, and every round begins with another.
"""

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report, weights
from benchmarks.peers.processes import Contestant, Process, running, take_turns

LENGTH = 64
BATCH_SIZES = (1, 8, 32, 128)
WORKS = {"whole": "all logits", "fill-mask": "ids to top 5"}
# How many times as fast as the fastest peer ours is to be.
TARGETS = {
    "whole": {1: 0.8, 8: 0.95, 32: 0.95, 128: 1.0},
    "fill-mask": {1: 1.0, 8: 1.15, 32: 1.25, 128: 1.4},
}
OURS, PEERS = "ours", ("torch.compile", "torch eager", "onnxruntime")
# With matrices multiplied in bfloat16.
OURS_NARROW, PEER_NARROW = report.narrowed(OURS), report.narrowed(PEERS[0])
# Logits reach some 10; bfloat16 keeps 8 bits of what goes into each of a dozen products.
TOLERANCES = {"float32": 1e-4, report.NARROW: 0.3}
# Calls of a turn, so that all turns take about as long.
CALLS = {1: 40, 8: 12, 32: 4, 128: 2}
BUNDLE = Path(__file__).parent.parent / "checkpoints" / "masked-lm" / "1"


def our_side(name: str = OURS, bundle: Path = BUNDLE) -> Contestant:
    """Ours, as it is served."""
    setting = {"path": str(bundle), "length": LENGTH, "dtype": report.width_of(name)}
    return Contestant(name=name, module="benchmarks.ours.encoder", setting=setting)


def torch_side(name: str, path: str, batch_sizes: tuple[int, ...]) -> Contestant:
    """PyTorch, compiled or eager."""
    setting = {
        "weights": path,
        "is_compiled": PEERS[1] not in name,
        "dtype": report.width_of(name),
        "batch_sizes": batch_sizes,
        "length": LENGTH,
    }
    module = "benchmarks.peers.torch_encoder"
    return Contestant(name=name, module=module, peer="torch", setting=setting)


def onnx_side(path: str, batch_sizes: tuple[int, ...]) -> Contestant:
    """ONNX Runtime, reading what PyTorch exported."""
    return Contestant(
        name="onnxruntime",
        module="benchmarks.peers.onnx_encoder",
        peer="onnxruntime",
        setting={"path": path, "batch_sizes": batch_sizes},
    )


def draw(batch: int, vocab_size: int) -> tuple[list[list[int]], list[int]]:
    """Rows of symbols, each with one mask, and where that is."""
    random = np.random.default_rng(batch)
    tokens = random.integers(0, vocab_size, (batch, LENGTH))
    positions = random.integers(0, LENGTH, batch)
    tokens[np.arange(batch), positions] = vocab_size
    return tokens.tolist(), positions.tolist()


def check(processes: Mapping[str, Process], arrays: weights.Arrays, batch: int) -> dict[str, float]:
    """By how much the logits of each differ from plain arithmetic, at most.

    Raises:
        SystemExit: if they differ by more than rounding, or a symbol comes first at a mask that
            rounding does not put there.
    """
    tokens, positions = draw(batch, int(arrays["vocab_size"]))
    expected = weights.encoder_logits(arrays, np.array(tokens))
    at_masks = expected[np.arange(batch), positions]
    found = {}
    for name, process in processes.items():
        tolerance = TOLERANCES[report.width_of(name)]
        found[name] = float(np.abs(process.call("logits", tokens=tokens) - expected).max())
        if not found[name] < tolerance:
            raise SystemExit(f"{name}: expected logits to {tolerance}, got {found[name]} off")
        candidates = process.call("candidates", tokens=tokens, positions=positions)
        first = at_masks[np.arange(batch), [row[0] for row in candidates]]
        if not (first > at_masks.max(axis=-1) - 2 * tolerance).all():
            best = at_masks.argmax(axis=-1).tolist()
            raise SystemExit(f"{name}: expected {best} to come first, got {candidates}")
    return found


@contextmanager
def everyone(batch_sizes: tuple[int, ...]) -> Iterator[tuple[dict[str, Process], weights.Arrays]]:
    """All contestants, and the weights that they share."""
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        weights_path, onnx_path = f"{scratch}/weights.npz", f"{scratch}/model.onnx"
        ours = stack.enter_context(running([our_side(), our_side(OURS_NARROW)]))
        ours[OURS].call("export", path=weights_path)
        in_torch = [
            torch_side(name, weights_path, batch_sizes) for name in (*PEERS[:2], PEER_NARROW)
        ]
        torch = stack.enter_context(running(in_torch))
        torch["torch eager"].call("export", path=onnx_path, length=LENGTH)
        onnx = stack.enter_context(running([onnx_side(onnx_path, batch_sizes)]))
        yield {**ours, **torch, **onnx}, dict(np.load(weights_path))


def measure(num_rounds: int, batch_sizes: tuple[int, ...]) -> dict[str, Any]:
    """Everything, once all agree."""
    machine = report.machine("jax", "numpy")
    with everyone(batch_sizes) as (processes, arrays):
        differences = {batch: check(processes, arrays, batch) for batch in batch_sizes}
        work = [
            {"work": work, "batch": batch, **compare(processes, work, batch, arrays, num_rounds)}
            for work, batch in itertools.product(WORKS, batch_sizes)
        ]
        versions = {name: processes[name].call("version") for name in PEERS}
    return {"machine": machine | versions, "largest_difference": differences, "work": work}


def compare(
    processes: Mapping[str, Process],
    work: str,
    batch: int,
    arrays: weights.Arrays,
    num_rounds: int,
) -> dict[str, Any]:
    """One kind of work at one size, all taking turns."""
    tokens, positions = draw(batch, int(arrays["vocab_size"]))
    asked = {"work": work, "tokens": tokens, "positions": positions, "num_calls": CALLS[batch]}
    turns = {name: lambda p=process: p.call("turn", **asked) for name, process in processes.items()}
    return report.compare_widths(take_turns(turns, num_rounds), OURS, PEERS)


def table(results: Mapping[str, Any]) -> str:
    """Milliseconds of a batch by contestant, and how many times as fast as the fastest ours is."""
    rows, narrow = [], []
    for found in results["work"]:
        work = WORKS[found["work"]], found["batch"]
        taken = {name: report.spread(each) for name, each in found["contestants"].items()}
        target = f">= {TARGETS[found['work']][found['batch']]}"
        told = (taken[name] for name in (OURS, *PEERS))
        rows.append([*work, *told, report.spread(found["speed"]), target])
        told = (taken[name] for name in (OURS_NARROW, PEER_NARROW))
        speed, fastest = report.spread(found["narrow"]["speed"]), found["narrow"]["fastest_peer"]
        narrow.append([*work, *told, speed, fastest])
    wide = report.table(["work", "B", OURS, *PEERS, "speed", "target"], rows)
    header = ["work", "B", OURS_NARROW, PEER_NARROW, "speed", "against"]
    return f"{wide}\n\n{report.table(header, narrow)}"


def main() -> None:
    """Measures and tells."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each (default: 15)")
    options = parser.parse_args()
    num_rounds, sizes = (2, BATCH_SIZES[:2]) if options.quick else (options.rounds, BATCH_SIZES)
    results = measure(num_rounds, sizes)
    report.write(options.out, results, table(results))


if __name__ == "__main__":
    main()

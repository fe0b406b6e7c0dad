"""A training step of the masked encoder: ours beside PyTorch, from the same weights.

    .venv/bin/python -m benchmarks.train -o runs/benchmarks/train.json

The book's sizes: 4 blocks, D 128, 64 rows of 64 characters, 15 % of them masked; AdamW behind
clipping; in float32, and with matrices multiplied in bfloat16, which is held against the fastest in
any width. Everybody takes the same batches in the same order with every core. The head is computed
at the masked positions alone by all; ours computes nothing else of the last block's queries and
feed-forward either. Before anything is timed, the losses of the first steps must agree.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from benchmarks import report, weights
from benchmarks.peers.processes import Contestant, Process, running, take_turns
from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel

ROWS, LENGTH, VOCAB_SIZE, MASK_RATE = 64, 64, 28, 0.15
NUM_BATCHES = 8
OURS, PEERS = "ours", ("torch.compile", "torch eager")
# With matrices multiplied in bfloat16.
OURS_NARROW, PEER_NARROW = report.narrowed(OURS), report.narrowed(PEERS[0])
# How many times as fast as the faster of PyTorch's ours is to be.
TARGET = 1.0
OPTIMIZATION = {"learning_rate": 1e-3, "weight_decay": 0.01, "max_grad_norm": 1.0}
CHECKED_STEPS = 3
# Losses in nats; a first step of Adam divides gradients by themselves, which rounding moves most.
TOLERANCES = {"float32": 1e-4, report.NARROW: 1e-2}
STEPS_OF_A_TURN = 4


def draw() -> dict[str, np.ndarray]:
    """Batches of random symbols: what is seen, what was there, and where they differ."""
    random = np.random.default_rng(0)
    shape = (NUM_BATCHES, ROWS, LENGTH)
    targets = random.integers(0, VOCAB_SIZE, shape, dtype=np.int32)
    masked = random.random(shape) < MASK_RATE
    return {
        "inputs": np.where(masked, np.int32(VOCAB_SIZE), targets),
        "targets": targets,
        "masked": masked,
    }


def contestants(directory: str) -> list[Contestant]:
    """Ours, and PyTorch compiled and eager, in float32; ours and compiled in half the width."""
    setting = {
        "weights": f"{directory}/weights.npz",
        "batches": f"{directory}/batches.npz",
        "optimization": OPTIMIZATION,
    }
    return [
        Contestant(
            name=name,
            module="benchmarks.ours.training",
            setting={**setting, "seed": 0, "dtype": report.width_of(name)},
        )
        for name in (OURS, OURS_NARROW)
    ] + [
        Contestant(
            name=name,
            module="benchmarks.peers.torch_training",
            peer="torch",
            setting={**setting, "is_compiled": name != PEERS[1], "dtype": report.width_of(name)},
        )
        for name in (*PEERS, PEER_NARROW)
    ]


def check(processes: Mapping[str, Process]) -> dict[str, list[float]]:
    """The losses of everybody's first steps.

    Raises:
        SystemExit: if they differ by more than rounding.
    """
    losses = {name: p.call("losses", num_steps=CHECKED_STEPS) for name, p in processes.items()}
    for name, taken in losses.items():
        if not np.allclose(taken, losses[OURS], rtol=0, atol=TOLERANCES[report.width_of(name)]):
            raise SystemExit(f"{name}: expected losses {losses[OURS]}, got {taken}")
    return losses


def measure(num_rounds: int) -> dict[str, Any]:
    """Milliseconds of a step, all taking turns, once all agree."""
    machine = report.machine("jax", "flax", "optax", "numpy")
    model = MaskedLanguageModel(TransformerConfig.book(VOCAB_SIZE), rngs=nnx.Rngs(0))
    with tempfile.TemporaryDirectory() as directory:
        weights.save(Path(directory) / "weights.npz", weights.of_encoder(model))
        np.savez(Path(directory) / "batches.npz", allow_pickle=False, **draw())
        with running(contestants(directory)) as processes:
            losses = check(processes)
            turns = {
                name: lambda p=process: p.call("turn", num_calls=STEPS_OF_A_TURN)
                for name, process in processes.items()
            }
            found = report.compare_widths(take_turns(turns, num_rounds), OURS, PEERS)
            machine["torch"] = processes[PEERS[0]].call("version")
    return {"machine": machine, "first_losses": losses, **found}


def table(results: Mapping[str, Any]) -> str:
    """Milliseconds of a step, steps a second, and how many times as fast as the faster peer."""
    rows = []
    for name in (OURS, *PEERS, OURS_NARROW, PEER_NARROW):
        taken = results["contestants"][name]
        rows.append([name, report.spread(taken), 1e3 / taken["median"]])
    told = report.table(["64 rows of 64 characters", "ms a step", "steps/s"], rows)
    narrow = results["narrow"]
    return (
        f"{told}\n\nSpeed: {report.spread(results['speed'])}, target >= {TARGET}; "
        f"in {report.NARROW} {report.spread(narrow['speed'])}, against {narrow['fastest_peer']}"
    )


def main() -> None:
    """Measures and tells."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each (default: 15)")
    options = parser.parse_args()
    results = measure(2 if options.quick else options.rounds)
    report.write(options.out, results, table(results))


if __name__ == "__main__":
    main()

"""Greedy decoding: our encoder-decoder beside ``generate`` of transformers on a T5 of its size.

    .venv/bin/python -m benchmarks.decode -o runs/benchmarks/decode.json

Ours is the shipped reversal model as it is served; the T5 has its widths, layers and vocabulary
and random parameters. Both write exactly as many tokens as the source has, with a cache of keys
and values; what ours writes is checked. transformers runs with a thread for every core, and with
one.
"""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.peers.processes import Contestant, Process, running, take_turns
from models.blocks import BlockConfig

LENGTHS = (12, 48)
BATCH_SIZES = (1, 32)
OURS, PEERS = "ours", ("transformers, all cores", "transformers, one thread")
# The most milliseconds of a sequence, by tokens and batch; how many times as fast ours is to be.
TARGETS_MS = {(12, 1): 0.9, (12, 32): 0.18}
TARGET_SPEED = 5
CALLS = {1: 10, 32: 3}
BUNDLE = Path(__file__).parent.parent / "checkpoints" / "reversal" / "2"
# What a T5 of our size is made with: the sizes of the bundle, whose symbols are 0..94.
NUM_SYMBOLS = 95


def contestants(bundle: Path = BUNDLE) -> list[Contestant]:
    """Ours, and the T5 with all cores and with one."""
    setting = {"path": str(bundle), "lengths": LENGTHS}
    ours = Contestant(name=OURS, module="benchmarks.ours.decoder", setting=setting)
    size = t5_size(bundle)
    return [ours] + [
        Contestant(
            name=name,
            module="benchmarks.peers.t5",
            peer="torch",
            setting={**size, "is_threaded": is_threaded},
        )
        for name, is_threaded in zip(PEERS, (True, False), strict=True)
    ]


def t5_size(bundle: Path) -> dict[str, int]:
    """The widths, layers and vocabulary of our model.

    Raises:
        SystemExit: if the two sides of it differ in layers, which a T5 of its size could not.
    """
    config = json.loads((bundle / "model.json").read_text(encoding="utf-8"))["config"]
    layers = {config["num_encoder_layers"], config["num_decoder_layers"]}
    if len(layers) > 1:
        raise SystemExit(f"{bundle}: expected as many layers on both sides, got {sorted(layers)}")
    block = BlockConfig(embed_dim=config["embed_dim"], num_heads=config["num_heads"])
    return {
        "vocab_size": config["target_vocab_size"],
        "embed_dim": block.embed_dim,
        "num_heads": block.num_heads,
        "mlp_dim": block.mlp_dim,
        "num_layers": layers.pop(),
    }


def draw(batch: int, length: int) -> list[list[int]]:
    """Sources of random symbols."""
    return np.random.default_rng(batch).integers(0, NUM_SYMBOLS, (batch, length)).tolist()


def check(processes: Mapping[str, Process], length: int, batch: int) -> None:
    """That ours reverses every source, and the others write as many tokens.

    Raises:
        SystemExit: if not.
    """
    sources = draw(batch, length)
    expected = [source[::-1] for source in sources]
    for name, process in processes.items():
        written = process.call("decoded", sources=sources)
        if name == OURS and written != expected:
            raise SystemExit(f"{name}: expected {expected}, got {written}")
        if {len(target) for target in written} != {length}:
            raise SystemExit(f"{name}: expected {length} tokens, got {list(map(len, written))}")


def measure(num_rounds: int, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Everything, once what is written is right."""
    machine = report.machine("jax", "numpy")
    with running(contestants()) as processes:
        shapes = list(itertools.product(lengths, BATCH_SIZES))
        for length, batch in shapes:
            check(processes, length, batch)
        work = [
            {"length": length, "batch": batch, **compare(processes, length, batch, num_rounds)}
            for length, batch in shapes
        ]
        machine |= processes[PEERS[0]].call("versions")
        num_params = processes[PEERS[0]].call("num_params")
    return {"machine": machine, "t5_num_params": num_params, "work": work}


def compare(
    processes: Mapping[str, Process], length: int, batch: int, num_rounds: int
) -> dict[str, Any]:
    """Milliseconds of a sequence, all taking turns."""
    asked = {"sources": draw(batch, length), "num_calls": CALLS[batch]}

    def turn(process: Process) -> list[float]:
        return [taken / batch for taken in process.call("turn", **asked)]

    turns = {name: lambda p=process: turn(p) for name, process in processes.items()}
    return report.compare(take_turns(turns, num_rounds), OURS, PEERS)


def table(results: Mapping[str, Any]) -> str:
    """Milliseconds of a sequence, and how many times as fast as the fastest peer ours is."""
    rows = []
    for found in results["work"]:
        target_ms = TARGETS_MS.get((found["length"], found["batch"]))
        rows.append(
            [
                found["length"],
                found["batch"],
                *(report.spread(found["contestants"][name]) for name in (OURS, *PEERS)),
                report.spread(found["speed"]),
                (f"<= {target_ms} ms, " if target_ms else "") + f">= {TARGET_SPEED}x",
            ]
        )
    return report.table(["tokens", "B", OURS, *PEERS, "speed", "target"], rows)


def main() -> None:
    """Measures and tells."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each (default: 15)")
    options = parser.parse_args()
    num_rounds, lengths = (2, LENGTHS[:1]) if options.quick else (options.rounds, LENGTHS)
    results = measure(num_rounds, lengths)
    report.write(options.out, results, table(results))


if __name__ == "__main__":
    main()

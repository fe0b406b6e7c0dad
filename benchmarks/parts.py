"""What a call of the encoder is made of, and how near its products come to the core's limit.

    .venv/bin/python -m benchmarks.parts -o runs/benchmarks/parts.json

Eight rows of 64 characters through the book's masked encoder, all positions, on one core. JAX's
profiler tells of every operation that XLA runs; of each, the least time of all calls counts, so
that what else the machine does has no part in it. Beside the products stands a large one by numpy.
"""

import os

# As a call of ours has one thread; OpenBLAS reads it when numpy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import report
from benchmarks.ours import lanes
from models.checkpoint import load_model
from models.cores import compiler_options
from models.encoder import MaskedLanguageModel
from models.packed import PackedStack, pack, symbol_logits

BUNDLE = Path(__file__).parent.parent / "checkpoints" / "masked-lm" / "1"
NUM_ROWS, LENGTH = 8, 64
CALLS_PER_TRACE = 5
# Numbers a side of the large product.
SIZE = 2048
RATE = "gflops_of_a_large_product"
MATRICES, ATTENTION, SOFTMAX, GATE, COPIES, OTHER = (
    "products with matrices",
    "products of attention",
    "softmax, and the sums of norms",
    "gates, and scaling by norms",
    "copies into another order",
    "look-ups and additions",
)
# By the end of the name that an operation has in our code; the first that fits.
KINDS = {
    ATTENTION: r"->\w+/dot_general",
    MATRICES: r"dot_general",
    SOFTMAX: r"reduce_max|exp|reduce_sum|select_n|sub|div",
    GATE: r"tanh|mul",
    COPIES: r"transpose|split|concatenate|reshape|slice",
}


def kind_of(name: str) -> str:
    """What an operation of that name is."""
    return next((kind for kind, end in KINDS.items() if re.search(f"({end})$", name)), OTHER)


def named(program: str) -> dict[str, str]:
    """What each operation of a compiled program is called in our code, by XLA's name for it."""
    found = re.findall(
        r"^\s*(?:ROOT )?%?([\w.-]+) = .*?op_name=\"([^\"]*)\"", program, re.MULTILINE
    )
    return dict(found)


def events(directory: Path) -> Iterator[tuple[str, float]]:
    """The operations that a trace tells of, with their microseconds."""
    (path,) = directory.rglob("*.xplane.pb")
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                yield event.name, event.duration_ns / 1000


def num_operations(packed: PackedStack, num_rows: int, length: int) -> dict[str, int]:
    """Multiplications and additions of the products, by kind.

    The first block's queries, keys and values are looked up.
    """
    width, blocks = packed.config.embed_dim, packed.blocks
    matrices = [packed.unembedding]
    for index, block in enumerate(blocks):
        matrices += [block.query_key_value] if index else []
        matrices += [block.out, block.mlp.gate, block.mlp.up, block.mlp.down]
    return {
        MATRICES: 2 * num_rows * length * sum(matrix.size for matrix in matrices),
        ATTENTION: 2 * 2 * num_rows * length**2 * width * len(blocks),
    }


def compile_whole(packed: PackedStack) -> tuple[jax.stages.Compiled, Sequence[Any]]:
    """All logits of some rows, compiled as the service would, and its arguments."""
    leaves, tree = jax.tree.flatten(packed)

    def logits(leaves: list[jax.Array], *arrays: jax.Array) -> jax.Array:
        return symbol_logits(tree.unflatten(leaves), *arrays)

    generator = np.random.default_rng(0)
    tokens = generator.integers(0, packed.config.vocab_size, (NUM_ROWS, LENGTH), dtype=np.int32)
    arguments = leaves, tokens, np.full(NUM_ROWS, LENGTH, np.int32)
    options = compiler_options(jax.devices()[0])
    return jax.jit(logits).lower(*arguments).compile(compiler_options=options), arguments


def least_times(packed: PackedStack, num_traces: int) -> dict[str, float]:
    """The least microseconds of every operation of a call, by its names with XLA and with us."""
    compiled, arguments = compile_whole(packed)
    names = named(compiled.as_text())
    least: dict[str, float] = {}
    for _ in range(num_traces):
        with tempfile.TemporaryDirectory() as place:
            with jax.profiler.trace(place):
                for _ in range(CALLS_PER_TRACE):
                    jax.block_until_ready(compiled(*arguments))
            for name, spent_us in events(Path(place)):
                if name in names:
                    least[name] = min(spent_us, least.get(name, spent_us))
    return {f"{name} {names[name]}": spent_us for name, spent_us in least.items()}


def best_rate(num_calls: int) -> float:
    """The GFLOP/s of a large product by numpy, on one core."""
    left, right = np.random.default_rng(0).random((2, SIZE, SIZE), dtype=np.float32)
    least_s = min(_seconds(left, right) for _ in range(num_calls))
    return 2 * SIZE**3 / least_s / 1e9


def _seconds(left: np.ndarray, right: np.ndarray) -> float:
    began = time.perf_counter()
    np.matmul(left, right)
    return time.perf_counter() - began


def measure(num_traces: int) -> dict[str, Any]:
    """Microseconds by kind, and the rates of the products."""
    lanes.set_up()
    model = load_model(BUNDLE).model
    assert isinstance(model, MaskedLanguageModel)
    packed = pack(model)
    machine = report.machine("jax", "numpy")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    spent: dict[str, float] = {}
    times = least_times(packed, num_traces)
    for name, spent_us in times.items():
        spent[kind_of(name)] = spent.get(kind_of(name), 0.0) + spent_us
    counted = num_operations(packed, NUM_ROWS, LENGTH)
    return {
        "machine": machine,
        "operations_us": times,
        "kinds_us": spent,
        "gflops": {kind: count / spent[kind] / 1000 for kind, count in counted.items()},
        RATE: best_rate(2 * num_traces),
    }


def table(results: Mapping[str, Any]) -> str:
    """Microseconds, share and rate of every kind, the most first."""
    spent, rates = results["kinds_us"], results["gflops"]
    total = sum(spent.values())
    rows = [
        [kind, spent_us, f"{spent_us / total:.0%}", rates.get(kind, "")]
        for kind, spent_us in sorted(spent.items(), key=lambda item: -item[1])
    ]
    rows.append(["all", total, "100%", ""])
    rows.append([f"a product of {SIZE} x {SIZE} by numpy", "", "", results[RATE]])
    return report.table(["operations", "us", "share", "GFLOP/s"], rows)


def main() -> None:
    """Measures and tells."""
    parser = report.arguments(__doc__)
    parser.add_argument("--traces", type=int, default=20, help="each of some calls (default: 20)")
    options = parser.parse_args()
    results = measure(2 if options.quick else options.traces)
    report.write(options.out, results, table(results))


if __name__ == "__main__":
    main()

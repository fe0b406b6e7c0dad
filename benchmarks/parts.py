"""What a call of the encoder and a gradient are made of, beside what a core can do.

    .venv/bin/python -m benchmarks.parts -o runs/benchmarks/parts.json

Eight rows of 64 characters through the book's masked encoder, all positions, as the service calls
it; and the gradient of 32 rows, which is what a thread takes of a training step. On one core. JAX's
profiler tells of every operation that XLA runs; of each, the least time of all calls counts, so
that what else the machine does has no part in it. Beside them stand products by numpy.
"""

import os

# As a call of ours has one thread; OpenBLAS reads it when numpy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import re
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import report
from benchmarks.ours import lanes
from models.checkpoint import load_model
from models.cores import compiler_options
from models.encoder import MaskedLanguageModel
from models.packed import PackedStack, pack, symbol_logits
from models.products import multiplied_in
from training.masked_lm import masked_objective
from training.masking import asked_positions
from training.step import Objective, gradients

BUNDLE = Path(__file__).parent.parent / "checkpoints" / "masked-lm" / "1"
NUM_ROWS, LENGTH = 8, 64
NUM_TRAINED, MASK_RATE = 32, 0.15
CALLS_PER_TRACE = 5
# Numbers a side of the large product.
SIZE = 2048
MATRICES, OF_STATES, OF_MATRICES, ATTENTION, SOFTMAX, GATE, COPIES, OTHER = (
    "products with matrices",
    "gradients of what they read",
    "gradients of the matrices",
    "products of attention",
    "softmax, and sums of norms",
    "gates, and scaling by norms",
    "copies into another order",
    "look-ups and additions",
)
# By the end of the name that an operation has in our code; the first that fits.
KINDS = {
    ATTENTION: r"->B\w+\)*/dot_general",
    OF_STATES: r"transpose\(jvp\(.*\)\)/dot_general",
    MATRICES: r"dot_general",
    SOFTMAX: r"reduce_max|exp|reduce_sum|select_n|sub|div",
    GATE: r"tanh|mul",
    COPIES: r"transpose|split|concatenate|reshape|slice|copy",
}


class Operation(NamedTuple):
    """What XLA runs: what it is called in our code, and the shape of what comes out."""

    name: str
    shape: tuple[int, ...]


class Work(NamedTuple):
    """A compiled function with its arguments, and the arithmetic of its products, by kind."""

    compiled: jax.stages.Compiled
    arguments: Sequence[Any]
    num_operations: Mapping[str, int]
    matrices: frozenset[tuple[int, ...]] = frozenset()


def kind_of(operation: Operation, matrices: frozenset[tuple[int, ...]] = frozenset()) -> str:
    """What an operation is; ``matrices`` are the shapes of those that have a gradient."""
    is_backward = "transpose(jvp" in operation.name
    if is_backward and operation.shape in matrices and "/mul" not in operation.name:
        return OF_MATRICES
    found = (kind for kind, end in KINDS.items() if re.search(f"({end})$", operation.name))
    return next(found, OTHER)


def named(program: str) -> dict[str, Operation]:
    """The operations of a compiled program, by XLA's names for them."""
    found = re.findall(
        r"^\s*(?:ROOT )?%?([\w.-]+) = \w+\[([\d,]*)\].*?op_name=\"([^\"]*)\"",
        program,
        re.MULTILINE,
    )
    return {
        name: Operation(ours, tuple(map(int, filter(None, shape.split(",")))))
        for name, shape, ours in found
    }


def events(directory: Path) -> Iterator[tuple[str, float]]:
    """The operations that a trace tells of, with their microseconds."""
    (path,) = directory.rglob("*.xplane.pb")
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                yield event.name, event.duration_ns / 1000


def num_operations(
    packed: PackedStack, num_rows: int, length: int, num_asked: int | None = None
) -> dict[str, int]:
    """Multiplications and additions of the products of a call, by kind.

    The first block's queries, keys and values are looked up. Where ``num_asked`` positions of a row
    are asked for, they are computed, and all that comes behind the last block's keys and values is
    computed for so many.
    """
    width, blocks = packed.config.embed_dim, packed.blocks
    asked = length if num_asked is None else num_asked
    matrices, attention = asked * packed.unembedding.size, 0
    for index, block in enumerate(blocks):
        places = asked if index == len(blocks) - 1 else length
        inner = block.mlp.gate.size + block.mlp.up.size + block.mlp.down.size
        matrices += places * (block.out.size + inner)
        if index or num_asked is not None:
            matrices += (places + 2 * length) * block.query_key_value.size // 3
        attention += 2 * places * length * width
    return {MATRICES: 2 * num_rows * matrices, ATTENTION: 2 * num_rows * attention}


def a_call(model: MaskedLanguageModel) -> Work:
    """All logits of some rows, compiled as the service would."""
    packed = pack(model)
    leaves, tree = jax.tree.flatten(packed)

    def logits(leaves: list[jax.Array], *arrays: jax.Array) -> jax.Array:
        return symbol_logits(tree.unflatten(leaves), *arrays)

    arguments = leaves, _symbols(model, NUM_ROWS), np.full(NUM_ROWS, LENGTH, np.int32)
    return Work(_compiled(logits, arguments), arguments, num_operations(packed, NUM_ROWS, LENGTH))


def a_gradient(model: MaskedLanguageModel) -> Work:
    """The gradient of some rows, compiled as a thread of a training run has it."""
    graph, params = nnx.split(model, nnx.Param)
    targets = _symbols(model, NUM_TRAINED)
    masked = np.random.default_rng(1).random(targets.shape) < MASK_RATE
    batch = {
        "inputs": np.where(masked, np.int32(model.config.special_id), targets),
        "targets": targets,
        "weights": masked.astype(np.float32),
        "positions": asked_positions(masked, MASK_RATE),
    }

    @multiplied_in("float32", is_on_one_cpu=True)
    def loss(model: MaskedLanguageModel, batch: dict[str, jax.Array]) -> Objective:
        return masked_objective(model, batch, jnp.full(NUM_TRAINED, LENGTH))

    packed = pack(model)
    counted = num_operations(packed, NUM_TRAINED, LENGTH, batch["positions"].shape[1])
    # A product has a gradient for each of the two that are multiplied.
    counted = {
        MATRICES: counted[MATRICES],
        OF_STATES: counted[MATRICES],
        OF_MATRICES: counted[MATRICES],
        ATTENTION: 3 * counted[ATTENTION],
    }
    arguments = params, batch
    compiled = _compiled(partial(gradients, graph, loss, 1), arguments)
    return Work(compiled, arguments, counted, _shapes_of_matrices(packed))


def _shapes_of_matrices(packed: PackedStack) -> frozenset[tuple[int, ...]]:
    """Those of the packed matrices, and of what the last one is taken apart into."""
    shapes = {packed.unembedding.shape}
    for block in packed.blocks:
        mlp = block.mlp
        matrices = (block.query_key_value, block.out, mlp.gate, mlp.up, mlp.down)
        shapes |= {matrix.shape for matrix in matrices}
    width = packed.config.embed_dim
    return frozenset({*shapes, (width, 2 * width)})


def _symbols(model: MaskedLanguageModel, num_rows: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.integers(0, model.config.vocab_size, (num_rows, LENGTH), dtype=np.int32)


def _compiled(function: Any, arguments: Sequence[Any]) -> jax.stages.Compiled:
    options = compiler_options(jax.devices()[0])
    return jax.jit(function).lower(*arguments).compile(compiler_options=options)


def least_times(work: Work, names: Collection[str], num_traces: int) -> dict[str, float]:
    """The least microseconds of the operations of these names in a call."""
    least: dict[str, float] = {}
    for _ in range(num_traces):
        with tempfile.TemporaryDirectory() as place:
            with jax.profiler.trace(place):
                for _ in range(CALLS_PER_TRACE):
                    jax.block_until_ready(work.compiled(*work.arguments))
            for name, spent_us in events(Path(place)):
                if name in names:
                    least[name] = min(spent_us, least.get(name, spent_us))
    return least


def made_of(work: Work, num_traces: int) -> dict[str, Any]:
    """Microseconds of every operation and by kind, and the rates of the products."""
    names = named(work.compiled.as_text())
    times = least_times(work, names, num_traces)
    spent: dict[str, float] = {}
    for name, spent_us in times.items():
        kind = kind_of(names[name], work.matrices)
        spent[kind] = spent.get(kind, 0.0) + spent_us
    counted = work.num_operations
    return {
        "operations_us": {f"{name} {names[name].name}": us for name, us in times.items()},
        "kinds_us": spent,
        "gflops": {kind: count / spent[kind] / 1000 for kind, count in counted.items()},
    }


def rates_of_numpy(model: MaskedLanguageModel, num_calls: int) -> dict[str, float]:
    """The GFLOP/s of products by numpy on one core: a large one, and two of the gradient's."""
    rows, block = NUM_TRAINED * LENGTH, model.config.block
    width, inner = block.embed_dim, block.mlp_dim
    generator = np.random.default_rng(0)
    square, states, matrix, gradient = (
        generator.random(shape, dtype=np.float32)
        for shape in ((SIZE, SIZE), (rows, width), (width, inner), (rows, inner))
    )

    def rate(left: np.ndarray, right: np.ndarray) -> float:
        least_s = min(_seconds(left, right) for _ in range(num_calls))
        return 2 * left.size * right.shape[1] / least_s / 1e9

    return {
        f"{SIZE} x {SIZE} by {SIZE} x {SIZE}": rate(square, square),
        f"{rows} x {width} by {width} x {inner}": rate(states, matrix),
        f"{width} x {rows}, transposed, by {rows} x {inner}": rate(states.T, gradient),
    }


def _seconds(left: np.ndarray, right: np.ndarray) -> float:
    began = time.perf_counter()
    np.matmul(left, right)
    return time.perf_counter() - began


def measure(num_traces: int) -> dict[str, Any]:
    """What a call and a gradient are made of, and what numpy does."""
    lanes.set_up()
    model = load_model(BUNDLE).model
    assert isinstance(model, MaskedLanguageModel)
    machine = report.machine("jax", "numpy")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    return {
        "machine": machine,
        "works": {
            f"a call of {NUM_ROWS} rows": made_of(a_call(model), num_traces),
            f"the gradient of {NUM_TRAINED} rows": made_of(a_gradient(model), num_traces),
        },
        "numpy_gflops": rates_of_numpy(model, 2 * num_traces),
    }


def table(results: Mapping[str, Any]) -> str:
    """Microseconds, share and rate of every kind, the most first; then numpy's rates."""
    tables = []
    for title, made in results["works"].items():
        spent, rates = made["kinds_us"], made["gflops"]
        total = sum(spent.values())
        rows = [
            [kind, spent_us, f"{spent_us / total:.0%}", rates.get(kind, "")]
            for kind, spent_us in sorted(spent.items(), key=lambda item: -item[1])
        ]
        rows.append(["all", total, "100%", ""])
        tables.append(report.table([title, "us", "share", "GFLOP/s"], rows))
    rows = [[shapes, rate] for shapes, rate in results["numpy_gflops"].items()]
    tables.append(report.table(["a product by numpy", "GFLOP/s"], rows))
    return "\n\n".join(tables)


def main() -> None:
    """Measures and tells."""
    parser = report.arguments(__doc__)
    parser.add_argument("--traces", type=int, default=20, help="each of some calls (default: 20)")
    options = parser.parse_args()
    results = measure(2 if options.quick else options.traces)
    report.write(options.out, results, table(results))


if __name__ == "__main__":
    main()

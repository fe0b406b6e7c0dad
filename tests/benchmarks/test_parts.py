import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import parts
from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from models.packed import pack, symbol_logits
from tests.jaxprs import products_of

CONFIG = TransformerConfig(
    vocab_size=7, embed_dim=24, num_heads=3, num_layers=2, max_seq_len=parts.LENGTH
)


@pytest.fixture(scope="module")
def model():
    return MaskedLanguageModel(CONFIG, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("jit(f)/RD,DF->RF/dot_general", parts.MATRICES),
        ("jit(f)/jvp(RD,DF->RF)/dot_general", parts.MATRICES),
        ("jit(f)/transpose(jvp(RD,DF->RF))/dot_general", parts.OF_STATES),
        ("jit(f)/transpose(jvp())/transpose", parts.COPIES),
        ("jit(f)/BNKH,BNSH->BNKS/dot_general", parts.ATTENTION),
        ("jit(f)/transpose(jvp(BNKH,BNSH->BNKS))/dot_general", parts.ATTENTION),
        ("jit(f)/jit(_where)/select_n", parts.SOFTMAX),
        ("jit(f)/mul", parts.GATE),
        ("jit(f)/transpose", parts.COPIES),
        ("jit(f)/gather", parts.OTHER),
    ],
)
def test_operations_are_told_by_their_names(name, kind):
    assert parts.kind_of(parts.Operation(name, (5, 6))) == kind


def test_gradients_of_matrices_are_told_by_their_shapes():
    matrices = frozenset({(5, 6)})
    transposed = parts.Operation("jit(f)/transpose(jvp())/transpose", (5, 6))
    assert parts.kind_of(transposed, matrices) == parts.OF_MATRICES
    assert parts.kind_of(transposed._replace(shape=(6, 5)), matrices) == parts.COPIES


def test_names_and_shapes_are_read_off_the_compiled_program():
    compiled = jax.jit(lambda x: jnp.tanh(x) @ x).lower(np.ones((4, 3, 3), np.float32)).compile()
    told = parts.named(compiled.as_text()).values()
    assert {parts.kind_of(one) for one in told} >= {parts.MATRICES, parts.GATE}
    assert (4, 3, 3) in {one.shape for one in told}


def test_products_of_a_call_are_counted_as_they_are_traced(model):
    packed = pack(model)
    counted = parts.num_operations(packed, 2, 16)
    tokens, lengths = np.zeros((2, 16), np.int32), np.full(2, 16, np.int32)
    jaxpr = jax.make_jaxpr(lambda *a: symbol_logits(packed, *a))(tokens, lengths)
    assert sum(counted.values()) == sum(2 * product for product in products(jaxpr.jaxpr))


def test_products_of_a_gradient_are_counted_as_they_are_compiled(model):
    work = parts.a_gradient(model)
    assert set(work.num_operations) < {*parts.KINDS, parts.OF_MATRICES}
    counted = sum(work.num_operations.values())
    # XLA counts all else as well, a few operations for each number.
    assert counted < work.compiled.cost_analysis()["flops"] < 1.5 * counted


def test_every_kind_of_product_of_a_gradient_is_found_in_its_program(model):
    work = parts.a_gradient(model)
    kinds = [
        parts.kind_of(one, work.matrices) for one in parts.named(work.compiled.as_text()).values()
    ]
    assert set(kinds) >= set(work.num_operations)


def products(jaxpr):
    """How many numbers are multiplied by each product of a program."""
    for equation in products_of(jaxpr):
        left = equation.invars[0].aval
        ((contracted, _), _) = equation.params["dimension_numbers"]
        yield equation.outvars[0].aval.size * int(np.prod([left.shape[i] for i in contracted]))

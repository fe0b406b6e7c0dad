import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import parts
from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from models.packed import pack, symbol_logits


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("jit(f)/dot_general", parts.MATRICES),
        ("jit(f)/BNKH,BNSH->BNKS/dot_general", parts.ATTENTION),
        ("jit(f)/jit(_where)/select_n", parts.SOFTMAX),
        ("jit(f)/mul", parts.GATE),
        ("jit(f)/transpose", parts.COPIES),
        ("jit(f)/gather", parts.OTHER),
    ],
)
def test_operations_are_told_by_their_names(name, kind):
    assert parts.kind_of(name) == kind


def test_names_are_read_off_the_compiled_program():
    compiled = jax.jit(lambda x: jnp.tanh(x) @ x).lower(np.ones((4, 4), np.float32)).compile()
    assert {parts.kind_of(name) for name in parts.named(compiled.as_text()).values()} >= {
        parts.MATRICES,
        parts.GATE,
    }


def test_products_are_counted_as_xla_counts_them():
    config = TransformerConfig(
        vocab_size=7, embed_dim=24, num_heads=3, num_layers=2, max_seq_len=16
    )
    packed = pack(MaskedLanguageModel(config, rngs=nnx.Rngs(0)))
    counted = parts.num_operations(packed, 2, 16)
    tokens, lengths = np.zeros((2, 16), np.int32), np.full(2, 16, np.int32)
    jaxpr = jax.make_jaxpr(lambda *a: symbol_logits(packed, *a))(tokens, lengths)
    assert sum(counted.values()) == sum(2 * product for product in products(jaxpr.jaxpr))


def products(jaxpr):
    """How many numbers are multiplied by each product of a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left = equation.invars[0].aval
            ((contracted, _), _) = equation.params["dimension_numbers"]
            yield equation.outvars[0].aval.size * int(np.prod([left.shape[i] for i in contracted]))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None:
                yield from products(inner)

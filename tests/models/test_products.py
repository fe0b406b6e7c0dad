"""Products: what is rounded, what is not, and that gradients are multiplied alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.products import einsum_op, linear, multiplied_in, product, times, unrounded
from tests.jaxprs import equations_of, products_of

SIZES = {"B": 2, "N": 3, "T": 5, "S": 4, "M": 3, "H": 6, "D": 7, "F": 4, "R": 9}
# With matrices, by heads, folded, and of many matrices at once.
SPECS = (
    "RD,DF->RF",
    "BTD,DNH->BNTH",
    "BNTH,NHD->BTD",
    "BNTH,BNSH->BNTS",
    "BNTS,BNSH->BNTH",
    "BNMH,DNH->BNMD",
    "BNMD,DNH->BNMH",
)
NARROW, WIDE = jnp.dtype("bfloat16"), jnp.dtype("float32")


def operands(spec, seed=0):
    """Two operands and a gradient of what comes out, of eighths, which bfloat16 holds exactly."""
    generator = np.random.default_rng(seed)
    shapes = [[SIZES[letter] for letter in part] for part in spec.replace("->", ",").split(",")]
    return [jnp.asarray(generator.integers(-9, 9, shape) / 8, jnp.float32) for shape in shapes]


def outcome(spec, first, second, slope):
    """The product, and the gradient of both operands."""

    @jax.jit
    def found(first, second):
        value, pull = jax.vjp(lambda *pair: product(spec, *pair), first, second)
        return value, *pull(slope)

    return found(first, second)


@pytest.mark.parametrize("is_on_one_cpu", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_numbers_that_need_no_rounding_have_the_product_and_the_gradients_of_float32(
    spec, is_on_one_cpu
):
    """Such sums are exact in any order: they differ if anything but the operands is rounded."""
    exact = outcome(spec, *operands(spec))
    with multiplied_in("bfloat16", is_on_one_cpu=is_on_one_cpu):
        found = outcome(spec, *operands(spec))
    for expected, got in zip(exact, found, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("spec", SPECS)
def test_both_operands_are_rounded_and_sums_are_not(spec):
    first, second, _ = (jnp.pi * array for array in operands(spec))
    expected = np.einsum(
        spec, *(np.asarray(array.astype(NARROW), np.float64) for array in (first, second))
    )
    for found in (product(spec, first, second.astype(NARROW)), within(spec, first, second)):
        assert found.dtype == WIDE
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(product(spec, first, second) - expected).max() > 1e-3


def within(spec, first, second):
    with multiplied_in("bfloat16"):
        return product(spec, first, second)


@pytest.mark.parametrize("is_on_one_cpu", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_gradients_are_multiplied_in_half_the_width_too(spec, is_on_one_cpu):
    with multiplied_in(NARROW, is_on_one_cpu=is_on_one_cpu):
        jaxpr = jax.make_jaxpr(lambda *arrays: outcome(spec, *arrays))(*operands(spec))
    found = list(products_of(jaxpr.jaxpr))
    assert len(found) >= 3
    for equation in found:
        assert {operand.aval.dtype for operand in equation.invars} == {NARROW}
        assert {result.aval.dtype for result in equation.outvars} == {WIDE}


@pytest.mark.parametrize("spec", SPECS)
def test_on_one_cpu_left_operands_are_summed_over_their_end_and_held_so(spec):
    with multiplied_in(NARROW, is_on_one_cpu=True):
        jaxpr = jax.make_jaxpr(lambda *arrays: outcome(spec, *arrays))(*operands(spec)).jaxpr
    for equation in products_of(jaxpr):
        (summed, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval
        assert sorted(summed) == list(range(left.ndim - len(summed), left.ndim))
    # A matrix has a gradient that is summed over what lies first in what it read.
    assert list(equations_of(jaxpr, "layout_constraint"))


@pytest.mark.parametrize("spec", SPECS)
def test_over_several_devices_nothing_is_held_where_it_lies(spec):
    with multiplied_in(NARROW):
        jaxpr = jax.make_jaxpr(lambda *arrays: outcome(spec, *arrays))(*operands(spec)).jaxpr
    assert not list(equations_of(jaxpr, "layout_constraint"))


@pytest.mark.parametrize("is_on_one_cpu", [False, True])
@pytest.mark.parametrize("spec", ["BNTH,BNSH->BNTS", "BNTS,BNSH->BNTH"])
def test_states_are_multiplied_by_states_as_they_are(spec, is_on_one_cpu):
    first, second, slope = (jnp.pi * array for array in operands(spec))
    expected = outcome(spec, first, second, slope)

    def found(first, second):
        value, pull = jax.vjp(lambda *pair: unrounded(spec, *pair), first, second)
        return value, *pull(slope)

    with multiplied_in("bfloat16", is_on_one_cpu=is_on_one_cpu):
        got = jax.jit(found)(first, second)
        jaxpr = jax.make_jaxpr(found)(first, second).jaxpr
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5, strict=True)
    assert bool(list(equations_of(jaxpr, "layout_constraint"))) == is_on_one_cpu


def test_gradients_have_the_width_of_what_they_are_of():
    first, second, slope = operands(SPECS[0])
    _, of_first, of_second = outcome(SPECS[0], first, second.astype(NARROW), slope)
    assert (of_first.dtype, of_second.dtype) == (WIDE, NARROW)


def test_by_itself_nothing_is_rounded_and_so_it_is_again_afterwards():
    first, second, _ = (jnp.pi * array for array in operands(SPECS[0]))
    expected = first @ second

    def fail_inside():
        with multiplied_in("bfloat16"):
            assert not np.array_equal(product(SPECS[0], first, second), expected)
            with multiplied_in("float32"):
                np.testing.assert_array_equal(product(SPECS[0], first, second), expected)
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    np.testing.assert_array_equal(product(SPECS[0], first, second), expected)


@pytest.mark.parametrize("shape", [(9, 7), (2, 5, 7), (2, 3, 2, 7)])
def test_rows_in_any_number_of_axes_are_multiplied_by_a_matrix(shape):
    x = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    matrix = operands("RD,DF->RF")[1]
    np.testing.assert_allclose(times(x, matrix), x @ matrix, rtol=1e-5, atol=1e-5, strict=True)


def test_a_compiled_function_is_compiled_anew_for_another_width():
    first, second, _ = (jnp.pi * array for array in operands(SPECS[0]))
    compiled = jax.jit(lambda *pair: product(SPECS[0], *pair))
    exact = compiled(first, second)
    with multiplied_in("bfloat16"):
        rounded = compiled(first, second)
    assert not np.array_equal(rounded, exact)
    np.testing.assert_array_equal(compiled(first, second), exact)


@pytest.mark.parametrize("layer", ["linear", "einsum"])
def test_layers_multiply_alike_and_refuse_what_a_product_does_not_do(layer):
    x, kernel, _ = operands("RD,DF->RF")
    if layer == "linear":
        module = linear(*kernel.shape, rngs=nnx.Rngs(0))
    else:
        module = nnx.Einsum("RD,DF->RF", kernel.shape, einsum_op=einsum_op, rngs=nnx.Rngs(0))
    module.kernel[...] = kernel
    np.testing.assert_array_equal(module(x), times(x, kernel))
    module.precision = "highest"
    with pytest.raises(NotImplementedError, match=r"got \{'precision': 'highest'\}"):
        module(x)

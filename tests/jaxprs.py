"""What a traced function is made of."""

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params


def products_of(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every matrix multiplication, those of loops and branches included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from products_of(inner)

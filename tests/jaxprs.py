"""What a traced function is made of."""

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params


def equations_of(jaxpr: Jaxpr, primitive: str) -> Iterator[JaxprEqn]:
    """Every use of a primitive, those of loops and branches included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == primitive:
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations_of(inner, primitive)


def products_of(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every matrix multiplication, those of loops and branches included."""
    return equations_of(jaxpr, "dot_general")

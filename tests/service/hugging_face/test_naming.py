"""Errors of native tasks, told by the names that callers of another protocol know."""

import pytest

from service.errors import InvalidInput, MalformedRequest, Overloaded
from service.tasks.hugging_face.answer import naming

FIELDS = {"targets": "parameters.targets", "input": "inputs.sentences", "input[2]": "inputs.source"}


@pytest.mark.parametrize(
    ("native", "told"),
    [
        ("targets", "parameters.targets"),
        ("targets[1]", "parameters.targets[1]"),
        ("input[1]", "inputs.sentences[1]"),
        ("input[2]", "inputs.source"),
        ("inputs[3]", "inputs[3]"),
    ],
)
def test_a_field_is_told_by_its_other_name(native, told):
    with pytest.raises(InvalidInput) as caught, naming(FIELDS):
        raise InvalidInput("expected 1, got 2", native)
    assert caught.value.param == told
    assert str(caught.value) == f"{told}: expected 1, got 2"


def test_the_kind_of_an_error_stays():
    with (
        pytest.raises(MalformedRequest, match=r"parameters\.targets\[0\]: no text"),
        naming(FIELDS),
    ):
        raise MalformedRequest("no text", "targets[0]")


def test_an_error_without_a_field_passes_as_it_is():
    error = Overloaded("the queue is full")
    with pytest.raises(Overloaded) as caught, naming(FIELDS):
        raise error
    assert caught.value is error

import asyncio
import threading

import pytest

from service.batcher import Batcher
from service.errors import InvalidInput, MalformedRequest
from service.registry import Registry
from service.settings import Settings
from service.tasks.context import Context, off_loop, require_length


@pytest.fixture
def context():
    batcher = Batcher(lambda key, rows: rows, lambda key: 1, max_rows=1)
    return Context(Registry({}), batcher, Settings(max_inputs=3, max_text_len=5))


def test_every_text_is_given_with_the_name_of_its_field(context):
    assert context.texts("abc") == [("inputs", "abc")]
    assert context.texts(["a", "b"]) == [("inputs[0]", "a"), ("inputs[1]", "b")]
    assert context.texts(["a"], "prompt") == [("prompt[0]", "a")]
    assert context.texts("") == [("inputs", "")]


@pytest.mark.parametrize("count", [0, 4])
def test_no_texts_and_too_many_are_refused(context, count):
    with pytest.raises(InvalidInput, match=f"inputs: expected 1 to 3 inputs, got {count}"):
        context.texts(["a"] * count)


def test_a_text_is_measured_in_characters_and_refused_by_name(context):
    context.texts("é\U0001f642abc")
    with pytest.raises(InvalidInput, match=r"inputs\[1\]: expected at most 5 characters, got 6"):
        context.texts(["a", "abcdef"])


def test_a_lone_surrogate_is_no_text(context):
    with pytest.raises(MalformedRequest, match=r"inputs\[1\]: .* lone surrogate at position 2"):
        context.texts(["a", "ab\ud800"])


@pytest.mark.parametrize(
    ("limits", "length", "wanted"),
    [((1, 5), 0, "1 to 5"), ((1, 5), 6, "1 to 5"), ((3, 3), 2, "exactly 3")],
)
def test_a_length_outside_the_limits_is_refused(limits, length, wanted):
    low, high = limits
    limits = {"min_len": low, "max_len": high}
    for fitting in (low, high):
        require_length(fitting, limits, "inputs")
    with pytest.raises(InvalidInput, match=f"inputs: expected {wanted} symbols, got {length}"):
        require_length(length, limits, "inputs")


def test_work_off_the_loop_is_done_in_another_thread():
    async def main():
        return await off_loop(threading.current_thread)

    assert asyncio.run(main()) is not threading.current_thread()

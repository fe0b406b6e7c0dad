import asyncio
import threading
import time
from dataclasses import replace

import pytest

from models.vocabulary import Vocabulary
from service.batcher import Batcher
from service.batches import Ticket
from service.errors import InvalidInput, MalformedRequest
from service.registry import Registry
from service.schemas import CompletionRequest, DecodeRequest, FillMaskRequest, LatentsRequest
from service.settings import Settings
from service.tasks.complete import complete
from service.tasks.context import FEW_SYMBOLS, Context, encode_text, off_loop, require_length
from service.tasks.decode import decode
from service.tasks.fill_mask import fill_mask
from service.tasks.latents import latents
from service.tasks.texts_or_ids import num_symbols
from tests.service import tiny
from tests.service.fakes import fake_model


@pytest.fixture
def context():
    batcher = Batcher(lambda key, rows: rows, lambda key, num_rows: 1, max_rows=1)
    return Context(Registry({}), batcher, Settings(max_inputs=3, max_text_len=5))


def without_unknown(wiring):
    """A model of that wiring that knows a and b and has no token for anything else."""
    card = next(card for card in tiny.cards() if card.wiring == wiring)
    vocabulary = Vocabulary(symbols=("a", "b"), specials=card.vocabulary.specials)
    return fake_model(replace(card, vocabulary=vocabulary))


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
        return [await off_loop(threading.current_thread, size) for size in (None, FEW_SYMBOLS + 1)]

    assert threading.current_thread() not in asyncio.run(main())


def test_work_on_few_symbols_is_done_at_once():
    async def main():
        return await off_loop(threading.current_thread, FEW_SYMBOLS)

    assert asyncio.run(main()) is threading.current_thread()


@pytest.mark.parametrize(
    ("given", "size"), [("abc", 3), (["ab", "c"], 3), ([1, 2], 2), ([[1, 2], [3]], 3), ([], 0)]
)
def test_symbols_are_counted_in_texts_and_in_token_ids(given, size):
    assert num_symbols(given) == size


def test_a_text_is_normalised_and_encoded_as_in_training():
    card = next(card for card in tiny.cards() if card.name == "masked-lm")
    encoded = encode_text(fake_model(card), "A\n1é, b", "inputs")
    assert encoded.tolist() == [tiny.MASKED.symbols.index(c) for c in "a b"]


def test_an_unknown_symbol_is_named_with_its_place_in_the_whole():
    model = without_unknown("decoder")
    assert encode_text(model, "abba", "prompt").tolist() == [0, 1, 1, 0]
    expected = r"inputs\[1\]: expected symbols of the alphabet 'ab', got 'c' .* at position "
    with pytest.raises(InvalidInput, match=expected + "2$"):
        encode_text(model, "abca", "inputs[1]")
    with pytest.raises(InvalidInput, match=expected + "7$"):
        encode_text(model, "abca", "inputs[1]", start=5)


@pytest.mark.parametrize(
    ("task", "wiring", "request_", "where"),
    [
        (complete, "decoder", CompletionRequest(prompt=["a", "abc"]), r"prompt\[1\]: .* 2$"),
        (decode, "encoder-decoder", DecodeRequest(inputs="c" * 20), r"inputs: .* 0$"),
        (fill_mask, "encoder", FillMaskRequest(inputs="ab<mask>ac<mask>"), r"inputs: .* 4$"),
        (latents, "perceiver", LatentsRequest(inputs="bc"), r"inputs: .* 1$"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_task_refuses_a_symbol_that_its_model_has_no_token_for(task, wiring, request_, where):
    batcher = Batcher(lambda key, rows: rows, lambda key, num_rows: 1, max_rows=1)
    context = Context(Registry({}), batcher, Settings())
    context.registry._models["tiny"] = without_unknown(wiring)
    context.registry.is_loaded = True
    with pytest.raises(InvalidInput, match=where):
        asyncio.run(task(context, request_, Ticket(time.monotonic() + 60)))

import base64
import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.encoding import FEW_VALUES, decode_array, encode_array, to_json, to_json_if_small
from service.errors import InvalidInput

shapes = hnp.array_shapes(min_dims=2, max_dims=3, max_side=4)
floats32 = hnp.arrays(np.float32, shapes, elements=st.floats(width=32, allow_nan=False))


@dataclasses.dataclass(frozen=True)
class Answer:
    name: str
    note: str | None = None
    required: str | None = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True)
class Holding:
    content: object


@given(floats32)
def test_base64_gives_back_the_same_bits(array):
    text = encode_array(array, "base64")
    again = decode_array(text, "float32", list(array.shape), "features")
    np.testing.assert_array_equal(again, array)
    assert base64.b64decode(text) == array.astype("<f4").tobytes()


@given(floats32.filter(lambda array: bool(np.isfinite(array).all())))
def test_floats_in_json_give_back_the_same_bits(array):
    again = json.loads(to_json(encode_array(array, "float")))
    np.testing.assert_array_equal(np.array(again, np.float32), array)


@pytest.mark.parametrize("order", [np.asfortranarray, lambda array: array[:, ::-1]])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_arrays_are_written_row_by_row_whatever_their_layout(order, encoding):
    array = order(np.arange(6, dtype=np.float64).reshape(2, 3))
    text = json.loads(to_json(encode_array(array, encoding)))
    if encoding == "base64":
        text = decode_array(text, "float32", [2, 3], "features").tolist()
    assert text == array.tolist()


def test_float64_is_read_too():
    array = np.array([[math.pi, 1e300]])
    text = base64.b64encode(array.astype("<f8").tobytes()).decode()
    np.testing.assert_array_equal(decode_array(text, "float64", [1, 2], "features"), array)


@pytest.mark.parametrize("data", ["?", "AAA", "AAAA\n", "AA AA", "ÄÖÜ=", "\x00", "====", "A" * 5])
def test_what_is_no_base64_is_refused(data):
    with pytest.raises(InvalidInput, match=r"features\.data: expected (base64|4 bytes)"):
        decode_array(data, "float32", [1, 1], "features")


@pytest.mark.parametrize("shape", [[1, 1], [3, 1], [2, 2], [2**31, 2**31], [2**62, 2**62, 2**62]])
def test_a_shape_that_the_data_does_not_fill_is_refused_without_allocating(shape):
    data = base64.b64encode(bytes(8)).decode()
    with pytest.raises(InvalidInput, match=r"features\.data: expected \d+ bytes .*, got 8$"):
        decode_array(data, "float32", shape, "features")


def test_optional_fields_are_left_out_and_required_ones_kept_as_null():
    assert json.loads(to_json(Answer("x", required=None))) == {"name": "x", "required": None}
    assert json.loads(to_json([Answer("x", "y", required="z")])) == [
        {"name": "x", "note": "y", "required": "z"}
    ]


def test_dataclasses_are_objects_wherever_they_are():
    a, b = Answer("a", required="x"), Answer("b", required=None)
    content = Holding((a, {"b": b}, [None, a], Holding(b)))
    plain_a, plain_b = {"name": "a", "required": "x"}, {"name": "b", "required": None}
    expected = {"content": [plain_a, {"b": plain_b}, [None, plain_a], {"content": plain_b}]}
    assert json.loads(to_json(content)) == expected


def test_what_json_cannot_hold_is_a_fault_of_ours():
    for write in (to_json, to_json_if_small):
        with pytest.raises(TypeError, match="not JSON serializable"):
            write({"value": object()})


@pytest.mark.parametrize(
    "content",
    [
        {"a": [1, 2.5, None, "text"], "b": np.zeros(10)},
        Answer(name="x" * 1000, required=None),
        Holding((Answer("a", required="b"), {"c": Answer("d", required=None)})),
        [None, Answer(name="a", required="b")],
        [Answer(name="a", required="b")] * (FEW_VALUES // 5),
        [0] * FEW_VALUES,
    ],
)
def test_few_values_are_small_however_they_are_nested(content):
    assert to_json_if_small(content) == to_json(content)


@pytest.mark.parametrize(
    "content",
    [
        [0] * (FEW_VALUES + 1),
        {"a": [[0] * 40] * 40},
        {str(i): i for i in range(FEW_VALUES + 1)},
        [Answer(name="a", required="b")] * (FEW_VALUES // 2),
        {"a": Answer(name="x" * 64 * (FEW_VALUES + 1), required=None)},
        Answer(name="a", note="x" * 64 * (FEW_VALUES + 1), required=None),
        Holding(Holding([0] * (FEW_VALUES + 1))),
        [{"array": np.zeros((FEW_VALUES, 2))}],
    ],
)
def test_many_values_are_not_small_wherever_they_are(content):
    assert to_json_if_small(content) is None

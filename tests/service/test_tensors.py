"""Tensors on the wire: what is written is what is read, and nothing else passes for it."""

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.encoding import to_json
from service.errors import InvalidInput
from service.tensor_schemas import InputParameters, InputTensor
from service.tensors import DTYPES, read_tensors, write_tensor

shapes = arrays.array_shapes(max_dims=3, max_side=4)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
elements = {
    "BYTES": text,
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
}


def tensor(datatype, shape, data=None, size=None, name="x"):
    parameters = None if size is None else InputParameters(binary_data_size=size)
    return InputTensor(
        name=name, shape=list(shape), datatype=datatype, parameters=parameters, data=data
    )


@pytest.mark.parametrize("datatype", DTYPES)
@given(data=st.data())
def test_what_is_written_is_what_is_read_as_json_and_as_bytes(datatype, data):
    array = data.draw(arrays.arrays(DTYPES[datatype], shapes, elements=elements[datatype]))
    for binary in (False, True):
        written, tail = write_tensor("x", datatype, array, binary=binary)
        told = orjson.loads(to_json(written))
        assert (told["name"], told["datatype"], told["shape"]) == ("x", datatype, [*array.shape])
        assert ("data" in told, "parameters" in told) == (not binary, binary)
        read = read_tensors([InputTensor(**told)], tail)
        # Numbers of JSON are read in full width, until a model takes them in its own.
        np.testing.assert_array_equal(read["x"].astype(DTYPES[datatype]), array)


@pytest.mark.parametrize("datatype", DTYPES)
@given(data=st.data())
def test_nested_values_are_the_same_as_flat_ones(datatype, data):
    array = data.draw(arrays.arrays(DTYPES[datatype], shapes, elements=elements[datatype]))
    nested = read_tensors([tensor(datatype, array.shape, array.tolist())], b"")
    flat = read_tensors([tensor(datatype, array.shape, array.ravel().tolist())], b"")
    np.testing.assert_array_equal(nested["x"], array)
    np.testing.assert_array_equal(flat["x"], array)


def test_bytes_lie_one_after_the_other_each_after_its_length():
    _, tail = write_tensor("x", "BYTES", np.array(["é", "", "ab"], object), binary=True)
    assert tail == b"\2\0\0\0\xc3\xa9" + b"\0\0\0\0" + b"\2\0\0\0ab"


def test_numbers_lie_one_after_the_other_in_little_endian_rows():
    array = np.array([[1, -1], [256, 2**31 - 1]], ">i4")
    _, tail = write_tensor("x", "INT32", array.T, binary=True)
    assert tail == bytes.fromhex("01000000 00010000 ffffffff ffffff7f")
    _, tail = write_tensor("x", "FP32", np.array([1.5], np.float64), binary=True)
    assert tail == bytes.fromhex("0000c03f")


def test_tensors_are_read_in_their_order_whether_or_not_all_are_binary():
    inputs = [
        tensor("INT32", [1], size=4, name="a"),
        tensor("INT32", [1], [5], name="b"),
        tensor("INT64", [1], size=8, name="c"),
    ]
    read = read_tensors(inputs, (7).to_bytes(4, "little") + (9).to_bytes(8, "little"))
    assert {name: array.tolist() for name, array in read.items()} == {"a": [7], "b": [5], "c": [9]}


HUGE = [2**31 - 1] * 3
NESTED = "expected lists nested as the shape [2, 2], or one flat list, got "


@pytest.mark.parametrize(
    ("tensors", "tail", "param", "message"),
    [
        ([tensor("FP32", [1])], b"", "x.data", "expected values, or a binary_data_size, got n"),
        ([tensor("FP32", [1], [1], 4)], b"abcd", "x.data", "no data beside a binary_data_size"),
        ([tensor("FP32", [2], [1])], b"", "x.data", "expected 2 values for the shape [2], got 1"),
        ([tensor("FP32", [1], [])], b"", "x.data", "expected 1 values for the shape [1], got 0"),
        ([tensor("FP32", HUGE, [1])], b"", "x.data", "expected 9903520300447984"),
        ([tensor("FP32", [2, 2], [[1], [2]])], b"", "x.data", NESTED + "1 items where axis 1"),
        ([tensor("FP32", [2, 2], [[1, 2]])], b"", "x.data", NESTED + "1 items where axis 0 has 2"),
        ([tensor("FP32", [2, 2], [[1, 2], 3])], b"", "x.data", NESTED + "3 where axis 1 has 2"),
        ([tensor("BYTES", [2, 2], [["a", "b"], "cd"])], b"", "x.data", NESTED + "'cd' where"),
        ([tensor("FP32", [1], [[1]])], b"", "x.data[0]", "expected a number, got [1]"),
        ([tensor("FP32", [2], [1, None])], b"", "x.data[1]", "expected a number, got null"),
        ([tensor("FP32", [1], ["1"])], b"", "x.data[0]", "expected a number, got '1'"),
        ([tensor("FP32", [1], [True])], b"", "x.data[0]", "expected a number, got true"),
        ([tensor("INT32", [1], [1.0])], b"", "x.data[0]", "expected an integer, got 1.0"),
        ([tensor("INT32", [1], [False])], b"", "x.data[0]", "expected an integer, got false"),
        ([tensor("INT32", [1], [2**31])], b"", "x.data[0]", "-2147483648 to 2147483647, got 2147"),
        ([tensor("INT64", [1], [2**64 - 1])], b"", "x.data[0]", "expected an integer from -9223"),
        ([tensor("BYTES", [1], [5])], b"", "x.data[0]", "expected a string, got 5"),
        ([tensor("BYTES", [1], [{"a": 1}])], b"", "x.data[0]", "expected a string, got {...}"),
        ([tensor("FP32", [2], size=4)], b"abcd", "x.parameters.binary_data_size", "expected 8 b"),
        ([tensor("FP32", HUGE, size=4)], b"abcd", "x.parameters.binary_data_size", "got 4"),
        ([tensor("FP32", [1], size=4)], b"abc", "x.parameters.binary_data_size", "at most 3, the"),
        ([tensor("FP32", [1], size=2**62)], b"", "x.parameters.binary_data_size", "at most 0, the"),
        ([tensor("FP32", [1], size=4)], b"abcde", "inputs", "expected 4 bytes behind the JSON"),
        ([tensor("FP32", [1], [1])], b"a", "inputs", "expected 0 bytes behind the JSON"),
        ([tensor("BYTES", [1], size=0)], b"", "x[0]", "expected 4 bytes for the length, got 0"),
        ([tensor("BYTES", [1], size=3)], b"\1\0\0", "x[0]", "4 bytes for the length, got 3"),
        ([tensor("BYTES", [1], size=5)], b"\2\0\0\0a", "x[0]", "expected 2 bytes as the length b"),
        ([tensor("BYTES", [1], size=4)], b"\xff" * 4, "x[0]", "expected 4294967295 bytes as the"),
        (
            [tensor("BYTES", [2], size=5)],
            b"\1\0\0\0a",
            "x[1]",
            "expected 4 bytes for the length, g",
        ),
        ([tensor("BYTES", HUGE, size=5)], b"\1\0\0\0a", "x[1]", "expected 4 bytes for the length"),
        (
            [tensor("BYTES", [1], size=7)],
            b"\1\0\0\0abc",
            "x",
            "expected 1 elements, each after its",
        ),
        ([tensor("BYTES", [1], size=6)], b"\2\0\0\0a\xff", "x[0]", "none at position 1"),
        ([tensor("BYTES", [1], size=7)], b"\3\0\0\0\xed\xa0\x80", "x[0]", "expected text in UTF-8"),
    ],
)
def test_what_is_no_such_tensor_is_refused_by_name(tensors, tail, param, message):
    with pytest.raises(InvalidInput) as caught:
        read_tensors(tensors, tail)
    assert caught.value.param == param
    assert message in caught.value.message
    assert ", got " in caught.value.message
    assert len(str(caught.value)) < 300

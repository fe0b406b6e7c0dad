import jax
import numpy as np
import pytest

from service.arguments import ALIGNMENT, FEW_BYTES, Arguments, take_apart

INTS, FLOATS, BOOLS = map(np.dtype, (np.int32, np.float32, np.bool_))
SPECS = [((2, 3), INTS), ((2,), FLOATS), ((2,), INTS), ((2, 0, 4), FLOATS), ((), BOOLS)]


def test_there_is_one_array_for_each_type_of_numbers():
    arguments = Arguments.of_zeros(SPECS)
    assert [(a.dtype, a.shape) for a in arguments.joined] == [
        (INTS, (8,)),
        (FLOATS, (2,)),
        (BOOLS, (1,)),
    ]
    assert arguments.specs == SPECS


@pytest.mark.parametrize("size", [1, FEW_BYTES], ids=["small", "large"])
def test_they_hold_zeros_until_something_is_written(size):
    arguments = Arguments.of_zeros([((size,), FLOATS), ((size,), INTS)])
    assert not any(array.any() for array in arguments.joined)
    arguments.views[1][...] = 7
    assert [array.tolist() for array in arguments.joined] == [[0.0] * size, [7] * size]


@pytest.mark.parametrize("dtype", [FLOATS, BOOLS], ids=str)
def test_large_arrays_lie_where_a_device_can_read_them_as_they_are(dtype):
    for size in range(FEW_BYTES, FEW_BYTES + 3):
        (array,) = Arguments.of_zeros([((size + 1,), dtype)]).joined
        assert array.ctypes.data % ALIGNMENT == 0
        assert array.size == size + 1
        read = jax.device_put(array, may_alias=True)
        assert read.unsafe_buffer_pointer() == array.ctypes.data


def test_a_compiled_function_gets_back_what_was_written():
    arguments = Arguments.of_zeros(SPECS)
    written = [np.arange(view.size).reshape(view.shape) + 5 for view in arguments.views]
    for view, values in zip(arguments.views, written, strict=True):
        view[...] = values
    found = jax.jit(lambda *joined: take_apart(joined, arguments.specs))(*arguments.joined)
    for array, values, (shape, dtype) in zip(found, written, SPECS, strict=True):
        assert (array.shape, array.dtype) == (shape, dtype)
        np.testing.assert_array_equal(array, values.astype(dtype))

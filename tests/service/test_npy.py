import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.errors import InvalidInput
from service.npy import MAX_HEADER_BYTES, read_npy, write_npy

shapes = hnp.array_shapes(min_dims=2, max_dims=3, max_side=5)
floats32 = hnp.arrays(np.float32, shapes, elements=st.floats(width=32))


def saved(array):
    """The bytes that numpy writes."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npy(header, numbers=b"", version=b"\x01\x00"):
    """A file with that header, whatever it says."""
    size = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + header + numbers


def header(descr="'<f4'", order="False", shape="(2, 3)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()


@given(floats32)
def test_what_numpy_saves_is_read_to_the_bit(array):
    np.testing.assert_array_equal(read_npy(saved(array), "features"), array)


@given(floats32)
def test_numpy_loads_what_is_written_to_the_bit(array):
    np.testing.assert_array_equal(np.load(io.BytesIO(write_npy(array))), array)


@given(floats32)
def test_byte_order_and_memory_layout_make_no_difference(array):
    for other in (array.astype(">f4"), np.asfortranarray(array), array[::-1][::-1]):
        np.testing.assert_array_equal(read_npy(saved(other), "features"), array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(version):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    np.testing.assert_array_equal(read_npy(file.getvalue(), "features"), array)


@pytest.mark.parametrize(
    "text",
    [
        b"{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}",
        b"{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
        b"  { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , }  \n"[2:],
    ],
    ids=["another order", "no spaces", "many spaces"],
)
def test_headers_of_other_writers_are_read(text):
    numbers = np.arange(6, dtype="<f4")
    array = read_npy(npy(text, numbers.tobytes()), "features")
    np.testing.assert_array_equal(array, numbers.reshape(2, 3))


NUMBERS = bytes(24)
WRONG = {
    "nothing": (b"", "features: expected a .npy file of version 1.0, 2.0 or 3.0, got 0 bytes"),
    "JSON": (b'{"inputs": "a"}', "features: expected a .npy file of version"),
    "a pickle": (pickle.dumps([1.0]), "features: expected a .npy file of version"),
    "an archive": (b"PK\x03\x04" + NUMBERS, "features: expected a .npy file of version"),
    "the magic alone": (b"\x93NUMPY", "features: expected a .npy file of version"),
    "a later version": (npy(header(), NUMBERS, b"\x04\x00"), "features: expected a .npy file of"),
    "no length": (b"\x93NUMPY\x01\x00", "features: expected a .npy header of at most"),
    "cut header": (npy(header())[:-9], "of at most 1024 bytes, got one of"),
    "long header": (
        npy(header() + b" " * MAX_HEADER_BYTES, NUMBERS),
        "features: expected a .npy header of at most 1024 bytes, got one of",
    ),
    "a length of 2**32": (
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + header(),
        "features: expected a .npy header of at most 1024 bytes, got one of 4294967295 bytes",
    ),
    "no dictionary": (npy(b"[1, 2]", NUMBERS), "features: expected a .npy header with descr,"),
    "a call": (npy(header(shape="exit()")), "features: expected a .npy header with descr,"),
    "brackets": (npy(b"(" * 900), "features: expected a .npy header with descr,"),
    "a missing field": (npy(b"{'descr': '<f4', 'shape': (2, 3)}"), "header with descr,"),
    "a further field": (npy(header()[:-1] + b"'x': (1,)}"), "header with descr,"),
    "a list of fields": (npy(header("[('a', '<f4')]")), "header with descr,"),
    "bytes that are no text": (npy(b"\xff" * 80, version=b"\x03\x00"), "header with descr,"),
    "objects": (
        saved(np.array([[{"a": 1}]], dtype=object)),
        "features.dtype: expected float32, as '<f4' or '>f4', got '|O'",
    ),
    "float64": (saved(np.zeros((2, 3))), "features.dtype: expected float32, as .*, got '<f8'"),
    "float16": (saved(np.zeros((2, 3), np.float16)), "features.dtype: .*, got '<f2'"),
    "integers": (saved(np.zeros((2, 3), np.int32)), "features.dtype: .*, got '<i4'"),
    "text": (saved(np.array([["a"]])), "features.dtype: .*, got '<U1'"),
    "dates": (saved(np.zeros((2, 3), "M8[s]")), "features.dtype: .*, got '<M8"),
    "no axis": (saved(np.float32(1)), "features.shape: expected .N, D. or .*, got \\[\\]"),
    "one axis": (saved(np.zeros(6, np.float32)), "features.shape: .*, got \\[6\\]"),
    "four axes": (saved(np.zeros((1, 1, 2, 3), np.float32)), "features.shape: .*, got \\[1, 1, 2"),
    "no rows": (saved(np.zeros((0, 3), np.float32)), "features.shape: .*, got \\[0, 3\\]"),
    "zero and huge": (npy(header(shape=f"(0, {2**62})")), "features.shape: .*, got \\[0, "),
    "minus one": (npy(header(shape="(-1, 3)"), NUMBERS), "features: expected a .npy header with"),
    "too short": (npy(header(), NUMBERS[1:]), "expected 24 bytes of float32 after .*, got 23"),
    "too long": (npy(header(), NUMBERS + b"\0"), "expected 24 bytes of float32 after .*, got 25"),
    "a product of 2**62": (npy(header(shape=f"({2**30}, {2**30})"), NUMBERS), "got 24$"),
    "a product of 2**64": (npy(header(shape=f"({2**31}, {2**33})"), NUMBERS), "features.shape: "),
    "beyond any machine": (npy(header(shape=f"(1{'0' * 900}, 1)"), NUMBERS), "features.shape: "),
}


@pytest.mark.parametrize(("data", "message"), WRONG.values(), ids=WRONG.keys())
def test_any_other_file_is_refused_before_anything_of_its_size_is_made(data, message, monkeypatch):
    def unpickle(*_args, **_kwargs):
        raise AssertionError("unpickled")

    monkeypatch.setattr("pickle.load", unpickle)
    monkeypatch.setattr("pickle.loads", unpickle)
    with pytest.raises(InvalidInput, match=message) as caught:
        read_npy(data, "features")
    assert len(str(caught.value)) < 400


@given(st.sampled_from([b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00"]), st.binary(max_size=200))
def test_random_bytes_are_refused_wherever_they_begin(start, data):
    with pytest.raises(InvalidInput, match="expected"):
        read_npy(start + data, "features")

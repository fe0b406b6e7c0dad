"""Arrays as ``.npy`` files: float32 and nothing else, so that nothing is ever unpickled.

The header is read by its own small grammar and must hold before anything of its size is made.
Source: the format as documented in ``numpy.lib.format``, versions 1.0 to 3.0.
"""

import io
import math
import re

import numpy as np

from service.errors import InvalidInput, excerpt

MEDIA_TYPE = "application/x-npy"
MAGIC = b"\x93NUMPY"
# By version: how many bytes tell the length of the header, and in which encoding it is.
VERSIONS = {b"\x01\x00": (2, "latin-1"), b"\x02\x00": (4, "latin-1"), b"\x03\x00": (4, "utf-8")}
# numpy writes 128 bytes for any plain array; more is no header of one.
MAX_HEADER_BYTES = 1024
# Of an axis; it keeps the product of all of them, and so what messages tell, to a few digits.
MAX_SIZE = 2**31 - 1
DTYPES = ("<f4", ">f4")
FIELDS = ("descr", "fortran_order", "shape")

_ITEM = r"'(\w+)'\s*:\s*('[^']*'|True|False|\([0-9\s,]*\))\s*"
_HEADER = re.compile(rf"\{{\s*(?:{_ITEM}(?:,\s*|(?=\}})))*\}}\s*")


def read_npy(data: bytes, param: str) -> np.ndarray:
    """The array that an ``.npy`` file holds, of two or three axes; a view of ``data``.

    Raises:
        InvalidInput: if it is no such file, not of float32, or not as long as its header says.
    """
    header, start = _header(data, param)
    values = dict(re.findall(_ITEM, header)) if _HEADER.fullmatch(header) else {}
    if sorted(values) != sorted(FIELDS):
        raise InvalidInput(
            f"expected a .npy header with {', '.join(FIELDS)} of a plain array, "
            f"got {excerpt(header.strip())}",
            param,
        )
    dtype = _dtype(values["descr"].strip("'"), f"{param}.dtype")
    shape = _shape(values["shape"], f"{param}.shape")
    expected = math.prod(shape) * dtype.itemsize
    if len(data) - start != expected:
        raise InvalidInput(
            f"expected {expected} bytes of float32 after the .npy header for shape "
            f"{excerpt(shape)}, got {len(data) - start}",
            param,
        )
    order = "F" if values["fortran_order"] == "True" else "C"
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape, order=order)


def _header(data: bytes, param: str) -> tuple[str, int]:
    """The text of the header, and where the numbers start."""
    version = data[len(MAGIC) : len(MAGIC) + 2]
    if not data.startswith(MAGIC) or version not in VERSIONS:
        raise InvalidInput(
            f"expected a .npy file of version 1.0, 2.0 or 3.0, got {len(data)} bytes that begin "
            f"with {data[:8]!r}",
            param,
        )
    width, encoding = VERSIONS[version]
    begin = len(MAGIC) + 2 + width
    size = int.from_bytes(data[begin - width : begin], "little")
    if size > MAX_HEADER_BYTES or len(data) < begin + size:
        raise InvalidInput(
            f"expected a .npy header of at most {MAX_HEADER_BYTES} bytes, got one of {size} bytes "
            f"in a file of {len(data)}",
            param,
        )
    return data[begin : begin + size].decode(encoding, errors="replace"), begin + size


def _dtype(descr: str, param: str) -> np.dtype:
    if descr not in DTYPES:
        raise InvalidInput(f"expected float32, as '<f4' or '>f4', got {excerpt(descr)}", param)
    return np.dtype(descr)


def _shape(text: str, param: str) -> list[int]:
    shape = [int(size) for size in re.findall("[0-9]+", text)]
    if len(shape) not in (2, 3) or not all(1 <= size <= MAX_SIZE for size in shape):
        raise InvalidInput(
            f"expected [N, D] or [B, N, D], each from 1 to {MAX_SIZE}, got {excerpt(shape)}", param
        )
    return shape


def write_npy(array: np.ndarray) -> bytes:
    """``array`` as an ``.npy`` file, in little-endian float32."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array, dtype="<f4"), allow_pickle=False)
    return file.getvalue()

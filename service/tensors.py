"""Tensors on the wire: JSON values, or raw bytes behind the JSON, to arrays and back.

Raw bytes are little-endian, row-major and without padding; an element of BYTES comes after its
length in 4 bytes. Sizes are compared before anything of them is made.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from service.errors import InvalidInput, excerpt
from service.tensor_schemas import InputTensor, OutputTensor

# What models take and give. Elements of BYTES are text here, since no model reads anything else.
DTYPES: Mapping[str, np.dtype] = {
    "BYTES": np.dtype(object),
    "FP32": np.dtype("<f4"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
}
# Of the length that comes before an element of BYTES.
LENGTH_BYTES = 4


def read_tensors(inputs: Sequence[InputTensor], tail: bytes) -> dict[str, np.ndarray]:
    """The arrays of ``inputs`` by name; ``tail`` is what came behind the JSON.

    Names, datatypes and shapes must be such as a model takes. BYTES become arrays of ``str``.

    Raises:
        InvalidInput: if values are not of the datatype, or not as many as the shape says.
    """
    arrays, start = {}, 0
    for tensor in inputs:
        size = tensor.parameters.binary_data_size if tensor.parameters else None
        if size is None:
            arrays[tensor.name] = _from_json(tensor)
            continue
        if tensor.data is not None:
            raise InvalidInput(
                "expected no data beside a binary_data_size, got both", f"{tensor.name}.data"
            )
        if size > len(tail) - start:
            raise InvalidInput(
                f"expected at most {len(tail) - start}, the bytes that are left behind the JSON, "
                f"got {size}",
                f"{tensor.name}.parameters.binary_data_size",
            )
        arrays[tensor.name] = _from_binary(tensor, tail[start : start + size])
        start += size
    if start < len(tail):
        raise InvalidInput(
            f"expected {start} bytes behind the JSON, as every binary_data_size together says, "
            f"got {len(tail)}",
            "inputs",
        )
    return arrays


def _from_json(tensor: InputTensor) -> np.ndarray:
    param = f"{tensor.name}.data"
    if tensor.data is None:
        raise InvalidInput("expected values, or a binary_data_size, got neither", param)
    items = _flatten(tensor.data, tensor.shape, param)
    if tensor.datatype == "BYTES":
        _require_types(items, (str,), "a string", param)
        return _texts(items, tensor.shape)
    if tensor.datatype == "FP32":
        _require_types(items, (int, float), "a number", param)
        # In full width until it is known that none is too large for less.
        return np.array(items, dtype=np.float64).reshape(tensor.shape)
    _require_types(items, (int,), "an integer", param)
    bounds = np.iinfo(DTYPES[tensor.datatype])
    wrong = next((i for i, item in enumerate(items) if not bounds.min <= item <= bounds.max), None)
    if wrong is not None:
        raise InvalidInput(
            f"expected an integer from {bounds.min} to {bounds.max}, got {excerpt(items[wrong])}",
            f"{param}[{wrong}]",
        )
    return np.array(items, dtype=DTYPES[tensor.datatype]).reshape(tensor.shape)


def _flatten(data: list, shape: Sequence[int], param: str) -> list:
    """The values of ``data`` in a row, whether they came so or nested as ``shape`` has it."""
    if not any(isinstance(item, list) for item in data):
        if len(data) != math.prod(shape):
            raise InvalidInput(
                f"expected {math.prod(shape)} values for the shape {excerpt(shape)}, "
                f"got {len(data)}",
                param,
            )
        return data
    level: list = [data]
    for axis, size in enumerate(shape):
        for item in level:
            if not isinstance(item, list) or len(item) != size:
                got = f"{len(item)} items" if isinstance(item, list) else excerpt(item)
                raise InvalidInput(
                    f"expected lists nested as the shape {excerpt(shape)}, or one flat list, got "
                    f"{got} where axis {axis} has {size}",
                    param,
                )
        level = [inner for item in level for inner in item]
    return level


def _require_types(items: Sequence[object], types: Sequence[type], name: str, param: str) -> None:
    # By the type itself: true and false are integers to Python.
    wrong = next((i for i, item in enumerate(items) if type(item) not in types), None)
    if wrong is not None:
        raise InvalidInput(f"expected {name}, got {excerpt(items[wrong])}", f"{param}[{wrong}]")


def _texts(items: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)


def _from_binary(tensor: InputTensor, part: bytes) -> np.ndarray:
    count = math.prod(tensor.shape)
    if tensor.datatype == "BYTES":
        return _texts(_split(part, count, tensor.name), tensor.shape)
    dtype = DTYPES[tensor.datatype]
    if len(part) != count * dtype.itemsize:
        raise InvalidInput(
            f"expected {count * dtype.itemsize} bytes for {tensor.datatype} of the shape "
            f"{excerpt(tensor.shape)}, got {len(part)}",
            f"{tensor.name}.parameters.binary_data_size",
        )
    return np.frombuffer(part, dtype=dtype).reshape(tensor.shape)


def _split(part: bytes, count: int, name: str) -> list[str]:
    """The ``count`` texts of a tensor, each of which comes after its length."""
    texts, start = [], 0
    for index in range(count):
        begin = start + LENGTH_BYTES
        end = begin + int.from_bytes(part[start:begin], "little")
        if begin > len(part) or end > len(part):
            wanted = LENGTH_BYTES if begin > len(part) else end - begin
            what = "for the length" if begin > len(part) else "as the length before it says"
            left = len(part) - (start if begin > len(part) else begin)
            raise InvalidInput(f"expected {wanted} bytes {what}, got {left}", f"{name}[{index}]")
        texts.append(_decode(part[begin:end], f"{name}[{index}]"))
        start = end
    if start < len(part):
        raise InvalidInput(
            f"expected {count} elements, each after its length, got {len(part) - start} more bytes",
            name,
        )
    return texts


def _decode(element: bytes, param: str) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"expected text in UTF-8, got bytes that are none at position {error.start}", param
        ) from None


def write_tensor(
    name: str, datatype: str, array: np.ndarray, *, binary: bool
) -> tuple[OutputTensor, bytes]:
    """A tensor of an answer, with what comes behind the JSON for it."""
    shape = list(array.shape)
    flat = np.ascontiguousarray(array, dtype=DTYPES[datatype]).ravel()
    if not binary:
        data = flat.tolist() if datatype == "BYTES" else flat
        return OutputTensor(name, datatype, shape, data=data), b""
    raw = _join(flat.tolist()) if datatype == "BYTES" else flat.tobytes()
    return OutputTensor(name, datatype, shape, parameters={"binary_data_size": len(raw)}), raw


def _join(texts: Sequence[str]) -> bytes:
    elements = [text.encode() for text in texts]
    return b"".join(len(e).to_bytes(LENGTH_BYTES, "little") + e for e in elements)

"""Feature vectors as they are sent: nested lists, base64 or an array, checked number by number."""

import numpy as np

from service.encoding import decode_array
from service.errors import InvalidInput, excerpt
from service.schemas import EncodedArray

# Features take the place of embeddings, which are of the order of 1. Attention multiplies them and
# norms square them, so that much larger ones overflow float32 inside the model.
MAX_MAGNITUDE = 1e6


def feature_matrices(
    features: EncodedArray | list[object] | np.ndarray | tuple[np.ndarray, ...] | None, width: int
) -> list[tuple[str, np.ndarray]]:
    """The N x ``width`` matrices of a request, as float32, each with the name of its field.

    Raises:
        InvalidInput: if the features are not finite numbers of that shape.
    """
    if isinstance(features, EncodedArray):
        features = decode_array(features.data, features.dtype, features.shape, "features")
    if isinstance(features, np.ndarray) and features.ndim == 2:
        return [("features", _checked(features, width, "features"))]
    if isinstance(features, np.ndarray | tuple):
        named = [(f"features[{index}]", matrix) for index, matrix in enumerate(features)]
        return [(name, _checked(matrix, width, name)) for name, matrix in named]
    if not features:
        raise InvalidInput(f"expected N x {width} numbers, got an empty list", "features")
    if _depth(features) < 3:
        return [("features", _matrix(features, width, "features"))]
    named = [(f"features[{index}]", matrix) for index, matrix in enumerate(features)]
    return [(name, _matrix(matrix, width, name)) for name, matrix in named]


def _depth(value: object) -> int:
    depth = 0
    while isinstance(value, list):
        depth += 1
        value = value[0] if value else None
    return depth


def _matrix(rows: object, width: int, param: str) -> np.ndarray:
    """Nested lists as a matrix; only numbers count as such, not strings, booleans or null."""
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise InvalidInput(
            f"expected N x {width} numbers as a list of lists, got {excerpt(rows)}", param
        )
    for index, row in enumerate(rows):
        if len(row) != width:
            raise InvalidInput(f"expected {width} numbers, got {len(row)}", f"{param}[{index}]")
        odd = next((i for i, value in enumerate(row) if type(value) not in (float, int)), None)
        if odd is not None:
            name = f"{param}[{index}][{odd}]"
            raise InvalidInput(f"expected a number, got {excerpt(row[odd])}", name)
    return _checked(np.array(rows, dtype=np.float64).reshape(len(rows), width), width, param)


def _checked(matrix: np.ndarray, width: int, param: str) -> np.ndarray:
    if matrix.ndim != 2 or matrix.shape[1] != width:
        raise InvalidInput(f"expected N x {width} numbers, got shape {list(matrix.shape)}", param)
    # Not greater is not enough, as it would let NaN through.
    fitting = np.abs(matrix) <= MAX_MAGNITUDE
    if not fitting.all():
        row, column = np.argwhere(~fitting)[0]
        raise InvalidInput(
            f"expected a number from {-MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}, "
            f"got {matrix[row, column]:g}",
            f"{param}[{row}][{column}]",
        )
    return matrix.astype(np.float32)

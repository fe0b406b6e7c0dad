"""``POST /v1/latents`` and ``/v1/embeddings``: arrays out, and in where one likes."""

import io
from typing import Any, TypedDict, Unpack, overload

import httpx2
import numpy as np
from numpy.typing import NDArray

from triwire.answers import LatentsResult
from triwire.calls.request import (
    Attention,
    Call,
    Ids,
    Texts,
    body_of,
    call_for_results,
    encoded,
    is_single,
    listed,
    results_of,
)
from triwire.errors import invalid
from triwire.reading import to_array

Arrays = list[np.ndarray] | tuple[np.ndarray, ...]


class LatentsOptions(TypedDict, total=False):
    """Options of ``latents``."""

    reconstruct: bool
    attention: Attention
    model: str | None


@overload
def latents(inputs: str | np.ndarray, **options: Unpack[LatentsOptions]) -> Call[LatentsResult]: ...
@overload
def latents(
    inputs: Texts | Arrays, **options: Unpack[LatentsOptions]
) -> Call[list[LatentsResult]]: ...
def latents(
    inputs: str | np.ndarray | Texts | Arrays,
    *,
    reconstruct: bool = False,
    attention: Attention = False,
    model: str | None = None,
) -> Call[Any]:
    """A text, or an array N x D of vectors, read into latents M x D; or each of a list of either.

    Arrays are read in float32, which is what is sent. ``reconstruct`` reads the text back out of
    the latents; ``attention`` gives what each latent read. Both are for texts only.

    Raises:
        TriwireError: if there is no such result.
    """
    options = {"reconstruct": reconstruct or None, "attention": encoded(attention), "model": model}
    is_one = isinstance(inputs, str | np.ndarray)
    items: list[Any] = [inputs] if is_one else list(inputs)
    if not any(isinstance(item, np.ndarray) for item in items):
        options["encoding_format"] = "base64"
        return call_for_results(LatentsResult, "/v1/latents", inputs, **options)
    vectors = [_vectors(item) for item in items]
    if len({item.shape for item in vectors}) > 1 or reconstruct or attention:
        return _of_numbers(vectors, is_one=is_one, **options)
    content = to_npy(vectors[0] if is_one else np.stack(vectors))
    return Call(
        path="/v1/latents",
        content=content,
        params=body_of(encoding_format="base64", model=model),
        read=lambda answer: results_of(LatentsResult, answer.json(), answer, is_one=is_one),
    )


def _of_numbers(vectors: list[np.ndarray], *, is_one: bool, **options: Any) -> Call[Any]:
    """Vectors in JSON, where they cannot be one array; as decimals float32 is exact too."""
    features = [item.tolist() for item in vectors]
    return Call(
        path="/v1/latents",
        json=body_of(
            features=features[0] if is_one else features, encoding_format="base64", **options
        ),
        read=lambda answer: results_of(LatentsResult, answer.json(), answer, is_one=is_one),
    )


def _vectors(item: Any) -> NDArray[np.float32]:
    if not isinstance(item, np.ndarray) or item.ndim != 2 or item.dtype.kind not in "fiu":
        shape = getattr(item, "shape", None)
        told = f"{item.dtype} of shape {shape}" if shape is not None else type(item).__name__
        raise invalid("inputs", f"expected a list of arrays N x D of real numbers, got {told}")
    return np.ascontiguousarray(item, dtype="<f4")


def to_npy(array: np.ndarray) -> bytes:
    """``array`` as an ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def embeddings(
    inputs: str | Texts | Ids | list[Ids], *, model: str | None = None
) -> Call[NDArray[np.float32]]:
    """The vector D of a text, or a matrix N x D of a list; token ids may stand for a text.

    Raises:
        TriwireError: if there is no such result; ``model`` must be given where several can.
    """
    is_one = is_single(inputs)

    def matrix(response: httpx2.Response) -> NDArray[np.float32]:
        data = response.json()["data"]
        rows = [to_array(item["embedding"], None, "answer.data.embedding") for item in data]
        return rows[0] if is_one else np.stack(rows)

    body = body_of(input=listed(inputs), encoding_format="base64", model=model)
    return Call(path="/v1/embeddings", json=body, read=matrix)

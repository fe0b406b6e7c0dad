"""Attention maps as answers: which layers and heads, and in what form."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.encoding import Encoding, FloatArray, encode_array
from service.errors import InvalidInput, TooLarge, excerpt
from service.schemas import AttentionRequest

Asked = AttentionRequest | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionMap:
    """Attention weights [layers, heads, target, source]; every row sums to 1 over the source.

    ``layers`` and ``heads`` say which they are, counted from 0; heads may be their mean.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    layers: list[int]
    heads: list[int] | list[str]
    shape: list[int]
    weights: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionChoice:
    """The layers and heads that a request asked for."""

    layers: list[int]
    heads: list[int] | None
    encoding: Encoding

    def select(
        self, weights: np.ndarray, target_tokens: Sequence[str], source_tokens: Sequence[str]
    ) -> AttentionMap:
        """The chosen part of ``weights`` (layers, heads, T, S), cut to the tokens there are."""
        cut = weights[self.layers][:, :, : len(target_tokens), : len(source_tokens)]
        cut = cut.mean(axis=1, keepdims=True) if self.heads is None else cut[:, self.heads]
        return AttentionMap(
            source_tokens=list(source_tokens),
            target_tokens=list(target_tokens),
            layers=self.layers,
            heads=["mean"] if self.heads is None else self.heads,
            shape=list(cut.shape),
            weights=encode_array(cut, self.encoding),
        )

    def require_size(self, num_pairs: int, limit: int) -> None:
        """Checks that weights for that many (target, source) pairs in all can be answered.

        Raises:
            TooLarge: if they are more than ``limit``.
        """
        num_heads = 1 if self.heads is None else len(self.heads)
        total = len(self.layers) * num_heads * num_pairs
        if total > limit:
            raise TooLarge(
                f"expected at most {limit} attention weights, got {total}; ask for fewer layers, "
                "heads or inputs",
                "attention",
            )


def choose(request: Asked, num_layers: int, num_heads: int) -> AttentionChoice | None:
    """What a request asked for, or None where it wants no attention.

    Raises:
        InvalidInput: if a layer or head does not exist, repeats, or none is named.
    """
    if not request:
        return None
    if request is True:
        request = AttentionRequest()
    heads = None
    if request.heads != "mean":
        heads = _indices(request.heads, num_heads, "attention.heads")
    return AttentionChoice(
        layers=_indices(request.layers, num_layers, "attention.layers"),
        heads=heads,
        encoding=request.encoding,
    )


def _indices(asked: str | list[int], count: int, param: str) -> list[int]:
    if isinstance(asked, str):
        return list(range(count))
    if not asked or len(set(asked)) < len(asked) or max(asked) >= count:
        raise InvalidInput(
            f"expected different numbers from 0 to {count - 1}, got {excerpt(asked)}", param
        )
    return asked

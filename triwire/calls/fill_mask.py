"""``POST /v1/fill-mask``."""

from typing import Any, TypedDict, Unpack, overload

from triwire.answers import FillMaskResult
from triwire.calls.request import Attention, Call, Texts, call_for_results, encoded, listed


class FillMaskOptions(TypedDict, total=False):
    """Options of ``fill_mask``."""

    top_k: int | None
    targets: Texts | None
    mask_token: str | None
    evidence: bool
    attention: Attention
    model: str | None


@overload
def fill_mask(inputs: str, **options: Unpack[FillMaskOptions]) -> Call[FillMaskResult]: ...
@overload
def fill_mask(inputs: Texts, **options: Unpack[FillMaskOptions]) -> Call[list[FillMaskResult]]: ...
def fill_mask(
    inputs: str | Texts,
    *,
    top_k: int | None = None,
    targets: Texts | None = None,
    mask_token: str | None = None,
    evidence: bool = False,
    attention: Attention = False,
    model: str | None = None,
) -> Call[Any]:
    """Candidates for every mask of a text, or of each of a list, and the text filled.

    A mask is ``<mask>``, or ``mask_token``. ``targets`` are the only candidates; by default there
    are ``top_k``, 5, of all symbols. ``evidence`` tells what each side of a mask was worth, and
    ``attention`` gives all self-attention maps, or those that an object chooses.

    Raises:
        TriwireError: if there is no such result.
    """
    return call_for_results(
        FillMaskResult,
        "/v1/fill-mask",
        inputs,
        top_k=top_k,
        targets=listed(targets),
        mask_token=mask_token,
        evidence=evidence or None,
        attention=encoded(attention),
        model=model,
    )

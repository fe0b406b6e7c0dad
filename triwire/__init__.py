"""A client of Triwire, blocking or asynchronous, and the command ``triwire``."""

from triwire.answers import (
    Alignment,
    AttentionMap,
    Beam,
    Candidate,
    Choice,
    Completion,
    CompletionChunk,
    CompletionLogprobs,
    DecodedToken,
    DecodeResult,
    Evidence,
    FillMaskResult,
    LatentsResult,
    MaskResult,
    Model,
    Origin,
    Readiness,
    Side,
    StreamedToken,
    Usage,
)
from triwire.async_client import AsyncTriwire
from triwire.calls.request import AttentionChoice
from triwire.client import Triwire
from triwire.errors import TriwireError
from triwire.version import __version__

__all__ = [
    "Alignment",
    "AsyncTriwire",
    "AttentionChoice",
    "AttentionMap",
    "Beam",
    "Candidate",
    "Choice",
    "Completion",
    "CompletionChunk",
    "CompletionLogprobs",
    "DecodeResult",
    "DecodedToken",
    "Evidence",
    "FillMaskResult",
    "LatentsResult",
    "MaskResult",
    "Model",
    "Origin",
    "Readiness",
    "Side",
    "StreamedToken",
    "Triwire",
    "TriwireError",
    "Usage",
    "__version__",
]

"""Every call of the API as a value; no input or output.

Both clients are made of these, and differ in how a call is sent.
"""

from triwire.calls.catalogue import live, model, models, plot, ready, reload
from triwire.calls.completions import complete, complete_stream
from triwire.calls.decode import decode, decode_stream
from triwire.calls.fill_mask import fill_mask
from triwire.calls.vectors import embeddings, latents

__all__ = [
    "complete",
    "complete_stream",
    "decode",
    "decode_stream",
    "embeddings",
    "fill_mask",
    "latents",
    "live",
    "model",
    "models",
    "plot",
    "ready",
    "reload",
]

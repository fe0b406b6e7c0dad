"""Text or arrays in, results out; no HTTP.

``PROGRAMS`` is the table of what is compiled for a model, by wiring: a new one is one more line.
"""

from collections.abc import Callable, Mapping, Sequence

from models.checkpoint import ModelCard
from service.engine import Program
from service.tasks import complete, decode, fill_mask, latents

PROGRAMS: Mapping[str, Callable[[ModelCard], Sequence[Program]]] = {
    "encoder": fill_mask.programs,
    "encoder-decoder": decode.programs,
    "decoder": complete.programs,
    "perceiver": latents.programs,
}

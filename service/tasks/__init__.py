"""Text or arrays in, results out; no HTTP.

``PROGRAMS`` is the table of what is compiled for a model, by wiring: a new one is one more line.
"""

from collections.abc import Callable, Mapping, Sequence

from models.checkpoint import ModelCard
from service.engine import Program
from service.tasks import complete, decode, fill_mask, latents

PROGRAMS: Mapping[str, Callable[[ModelCard], Sequence[Program]]] = {
    fill_mask.WIRING: fill_mask.programs,
    decode.WIRING: decode.programs,
    complete.WIRING: complete.programs,
    latents.WIRING: latents.programs,
}

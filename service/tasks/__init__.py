"""Text or arrays in, results out; no HTTP.

``PROGRAMS`` is the table of what is compiled for a model, by wiring: a new one is one more line.
"""

from collections.abc import Callable, Mapping, Sequence

from models.checkpoint import ModelCard
from service.programs import Program
from service.tasks import continuation, decode, embeddings, fill_mask, latents, states


def _all(*makers: Callable[[ModelCard], Sequence[Program]]) -> Callable[[ModelCard], list[Program]]:
    """What several tasks compile for one wiring."""
    return lambda card: [program for maker in makers for program in maker(card)]


PROGRAMS: Mapping[str, Callable[[ModelCard], Sequence[Program]]] = {
    fill_mask.WIRING: _all(fill_mask.programs, embeddings.programs, states.programs),
    decode.WIRING: decode.programs,
    continuation.WIRING: continuation.programs,
    latents.WIRING: _all(latents.programs, embeddings.programs),
}

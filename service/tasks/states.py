"""States: what an encoder has at every token of a text, before any of it is pooled."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.checkpoint import ModelCard
from models.encoder import MaskedLanguageModel
from service.programs import Program, Ragged

PROGRAM = "states"


def programs(card: ModelCard) -> Sequence[Program]:
    """What serving compiles for the states of an encoder."""
    longest = card.limits["max_len"]
    grid = ((1, longest),)

    def states(model: MaskedLanguageModel, *arrays: Any) -> dict[str, Any]:
        return {"states": model.encoder(*arrays).states}

    ragged = Ragged(name="tokens", dtype=np.int32)
    program = Program(name=PROGRAM, function=states, ragged=ragged, grid=grid, is_on_demand=True)
    return (program,)

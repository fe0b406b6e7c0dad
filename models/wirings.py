"""The table of wirings: what a bundle's ``wiring`` names. A new wiring is one more line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flax import nnx

from models.blocks import TransformerConfig
from models.decoder import CausalLanguageModel
from models.encoder import MaskedLanguageModel
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.perceiver import PerceiverAutoencoder, PerceiverConfig


@dataclass(frozen=True, slots=True)
class Wiring:
    """The classes of a wiring's config and model."""

    config: Callable[..., Any]
    model: Callable[..., nnx.Module]


WIRINGS = {
    "encoder": Wiring(TransformerConfig, MaskedLanguageModel),
    "encoder-decoder": Wiring(EncoderDecoderConfig, EncoderDecoder),
    "decoder": Wiring(TransformerConfig, CausalLanguageModel),
    "perceiver": Wiring(PerceiverConfig, PerceiverAutoencoder),
}

"""Untrained models of every wiring that compile in seconds, as bundles."""

import base64
import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.blocks import TransformerConfig
from models.checkpoint import ModelCard, save_model
from models.encoder_decoder import EncoderDecoderConfig
from models.perceiver import PerceiverConfig
from models.vocabulary import BOS, EOS, MASK, Vocabulary
from models.wirings import WIRINGS

WINDOW = 16
SOURCE_LEN = 12
WIDTH = 8
NUM_LATENTS = 4
MAX_INPUT_LEN = 128
PLOT = "point.png"
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg=="
)

MASKED = Vocabulary.english_letters(MASK)
CAUSAL = Vocabulary.english_letters(BOS)
SOURCES = Vocabulary(symbols=tuple("abcdefghijklmnop"), specials=(BOS,))

# A model of pairs reads words and writes sounds, which have names.
LETTERS = Vocabulary(symbols=tuple("abcde"), specials=())
SOUNDS = Vocabulary(symbols=("AE1", "B", "D", "IY0", "K"), specials=(BOS, EOS), separator=" ")
WORD_LEN = 6
SOUNDS_LEN = 10
# Of what this draw decodes, some is short and some long, and some would go on past every limit.
PAIRS_SEED = 36


def card(name: str, wiring: str, **fields) -> ModelCard:
    """A card with the fields that are the same for all."""
    return ModelCard(name=name, wiring=wiring, **{"version": 1, "created": 1_700_000_000} | fields)


def cards() -> list[ModelCard]:
    """The card of a tiny model of each wiring, as the training commands would write it."""
    transformer = TransformerConfig(
        vocab_size=len(MASKED.symbols),
        embed_dim=WIDTH,
        num_heads=2,
        num_layers=2,
        max_seq_len=WINDOW,
    )
    encoder_decoder = EncoderDecoderConfig(
        source_vocab_size=len(SOURCES.tokens),
        target_vocab_size=len(SOURCES.tokens),
        bos_id=SOURCES.special_id(BOS),
        embed_dim=WIDTH,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_source_len=SOURCE_LEN,
        max_target_len=SOURCE_LEN,
    )
    perceiver = PerceiverConfig(
        vocab_size=len(MASKED.symbols),
        num_latents=NUM_LATENTS,
        embed_dim=WIDTH,
        num_heads=2,
        num_layers=1,
        max_input_len=MAX_INPUT_LEN,
    )
    return [
        card(
            "masked-lm",
            "encoder",
            config=dataclasses.asdict(transformer),
            vocabulary=MASKED,
            limits={"min_len": 1, "max_len": WINDOW},
            task={"name": "fill-mask", "mask_token": MASK},
            figures={"masked_accuracy": 0.25},
        ),
        card(
            "reversal",
            "encoder-decoder",
            config=dataclasses.asdict(encoder_decoder),
            vocabulary=SOURCES,
            limits={"min_len": SOURCE_LEN, "max_len": SOURCE_LEN},
            task={"name": "decode", "alignment": "reverse"},
        ),
        card(
            "perceiver",
            "perceiver",
            config=dataclasses.asdict(perceiver),
            vocabulary=MASKED,
            limits={"min_len": 1, "max_len": MAX_INPUT_LEN},
            task={"name": "latents", "mask_token": MASK},
        ),
        card(
            "causal-lm",
            "decoder",
            config=dataclasses.asdict(dataclasses.replace(transformer, num_layers=1)),
            vocabulary=CAUSAL,
            limits={"min_len": 0, "max_len": WINDOW - 1},
            task={"name": "complete"},
        ),
    ]


def pairs() -> ModelCard:
    """The card of a model of pairs, which is no part of ``cards``."""
    config = EncoderDecoderConfig(
        source_vocab_size=len(LETTERS.tokens),
        target_vocab_size=len(SOUNDS.tokens),
        bos_id=SOUNDS.special_id(BOS),
        eos_id=SOUNDS.special_id(EOS),
        embed_dim=WIDTH,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_source_len=WORD_LEN,
        max_target_len=SOUNDS_LEN,
    )
    return card(
        "pairs",
        "encoder-decoder",
        config=dataclasses.asdict(config),
        vocabulary=LETTERS,
        target_vocabulary=SOUNDS,
        limits={"min_len": 1, "max_len": WORD_LEN},
        task={"name": "decode"},
    )


def model(card: ModelCard, seed: int = 0) -> nnx.Module:
    """The model of a card, with parameters drawn wide enough for answers to differ."""
    wiring = WIRINGS[card.wiring]
    abstract = nnx.eval_shape(lambda: wiring.model(wiring.config(**card.config), rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    generator = np.random.default_rng(seed)
    for _, variable in nnx.to_flat_state(state):
        shape = variable.get_value().shape
        drawn = generator.normal(scale=0.6, size=shape) if len(shape) > 1 else np.ones(shape)
        variable.set_value(jnp.asarray(drawn, jnp.float32))
    return nnx.merge(graph, state)


def save(root: Path) -> None:
    """Writes a bundle of each wiring under ``root``."""
    for card in cards():
        save_model(root, card, model(card), complete=illustrate)


def illustrate(bundle: Path) -> None:
    """Gives a bundle a picture of one white point."""
    (bundle / "plots").mkdir()
    (bundle / "plots" / PLOT).write_bytes(PICTURE)

"""Recipe 2: an encoder-decoder that reverses strings, so that the true alignment is known.

Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention".
"""

from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from models.encoder_decoder import Decoded, EncoderDecoder, EncoderDecoderConfig
from models.vocabulary import BOS, Vocabulary
from training import plots
from training.recipe import Figures, Identity, smoothed_losses
from training.step import Batch, Objective, Optimization, counted, jitted, token_losses

ALPHABET = "abcdefghijklmnop"
LENGTH = 12
NUM_EXACT = 1000
NUM_ALIGNED = 64

vocabulary = Vocabulary(symbols=tuple(ALPHABET), specials=(BOS,))


@dataclass(frozen=True, kw_only=True)
class ReversalRecipe:
    """Random strings of 12 letters out of 16; the target is the string reversed."""

    config: EncoderDecoderConfig
    optimization: Optimization
    seed: int = 0

    @classmethod
    def book(cls) -> "ReversalRecipe":
        """The published recipe: 600 steps, about a minute on 2 CPU cores, exact match 1.000.

        Every seed reverses without a fault, but where cross-attention looks on the way depends on
        the seed: it followed the true alignment in 81, 17 and 100 % of rows with seeds 0, 1 and 2.
        The encoder mixes positions before the decoder reads them, so other solutions are as good.
        """
        return cls(
            seed=2,
            config=EncoderDecoderConfig.book(len(vocabulary.tokens), vocabulary.special_id(BOS)),
            optimization=Optimization(num_steps=600, batch_size=128, learning_rate=1e-3),
        )

    @classmethod
    def debug(cls) -> "ReversalRecipe":
        """Seconds; learns nothing worth serving."""
        return cls(
            config=EncoderDecoderConfig.debug(len(vocabulary.tokens), vocabulary.special_id(BOS)),
            optimization=Optimization(num_steps=4, batch_size=8, learning_rate=1e-3),
        )

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        return Identity(
            name="reversal",
            wiring="encoder-decoder",
            config=self.config,
            vocabulary=vocabulary,
            limits={"min_len": LENGTH, "max_len": LENGTH},
            task={"name": "decode", "alignment": "reverse"},
            corpus={"name": f"random strings of {LENGTH} letters out of {ALPHABET}"},
        )

    def batch(self, step: int) -> Batch:
        """Fresh strings."""
        return {"source": draw_strings((self.seed, step), self.optimization.batch_size)}

    def loss(self, model: EncoderDecoder, batch: dict[str, Array]) -> Objective:
        """Cross-entropy over the target, in nats."""
        source = batch["source"]
        target = source[:, ::-1]
        bos = jnp.full((source.shape[0], 1), self.config.bos_id, source.dtype)
        lengths = jnp.full(source.shape[0], source.shape[1])
        inputs = jnp.concatenate([bos, target[:, :-1]], axis=1)
        losses = token_losses(model(source, lengths, inputs, lengths)[0], target)
        return counted(losses, jnp.ones_like(losses))

    def training_figures(self, losses: list[float]) -> Figures:
        """Loss along the way, mean of the last 20 steps."""
        return {"loss_at_step": smoothed_losses(losses, (100, 200, 400, 600), 20)}

    def evaluate(self, model: EncoderDecoder) -> Figures:
        """Exact match on fresh strings, and how far cross-attention follows the true alignment."""
        source = draw_strings((self.seed, 1_000_003), NUM_EXACT)
        decoded = decode(model, source)
        exact = (np.asarray(decoded.tokens) == source[:, ::-1]).all(axis=1)
        maps = np.asarray(decoded.attention[:NUM_ALIGNED, -1])
        return {
            "exact_match": float(exact.mean()),
            "num_strings": NUM_EXACT,
            "alignment": {
                "num_strings": NUM_ALIGNED,
                **dict(zip(("argmax_rate", "mean_weight"), alignment(maps), strict=True)),
            },
        }

    def plot(self, model: EncoderDecoder, figures: Figures, directory: Path) -> None:
        """Draws the cross-attention of one string, each head and their mean."""
        source = draw_strings((self.seed, 1_000_003), 1)
        text = vocabulary.decode(source[0])
        maps = np.asarray(decode(model, source).attention[0, -1])
        plots.alignment(directory / "alignment.png", maps, text, text[::-1])


def draw_strings(seed: tuple[int, ...], count: int) -> np.ndarray:
    """Random source strings (count, 12) as token ids."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, len(ALPHABET), (count, LENGTH), dtype=np.int32)


def decode(model: EncoderDecoder, source: np.ndarray) -> Decoded:
    """What the model makes of ``source`` (B, S), greedily."""
    lengths = np.full(len(source), source.shape[1], np.int32)
    return jitted(model, EncoderDecoder.decode)(source, lengths, lengths)


def alignment(weights: np.ndarray) -> tuple[float, float]:
    """How far attention (B, N, T, S) reads a string of S = T backwards.

    Gives the share of target positions whose head-averaged weight is largest on the true source
    position, and the mean weight there.
    """
    mean = weights.mean(axis=1)
    size = mean.shape[-1]
    truth = np.arange(size)[::-1]
    on_truth = mean[:, np.arange(size), truth]
    return float((mean.argmax(axis=-1) == truth).mean()), float(on_truth.mean())

"""Recipe 3: a Perceiver that reads text into latents and is asked for all of it back.

15 % of the characters are hidden on the way in and all are asked for on the way out, so the
latents must copy what they see and infer what they do not. One model serves every length, so each
step draws one length bucket and gives every row a length of its own in it.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention"; the objective
from Perceiver IO, Jaegle et al. (2021), arXiv:2107.14795, section 4.1.
"""

from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from models.perceiver import PerceiverAutoencoder, PerceiverConfig
from models.vocabulary import MASK, Vocabulary
from training import plots
from training.corpus import Corpus, unigram_entropy, windows
from training.cost_curve import CostCurve, measure_cost
from training.recipe import Figures, Identity, smoothed_losses
from training.step import Batch, Objective, Optimization, counted, jitted, token_losses
from training.text_windows import draw_masks

HELD_OUT = slice(100_000, 116_384)
FIDELITY_LENGTHS = (64, 128, 256, 512, 1024, 4096)
HIDDEN_RATE = 0.15

vocabulary = Vocabulary.english_letters(MASK)


@dataclass(frozen=True, kw_only=True)
class PerceiverRecipe:
    """Masked reconstruction of text windows through the bottleneck.

    ``buckets`` are the longest lengths of a step, ``bucket_weights`` how often each is drawn; a
    step holds ``batch_size`` rows of the longest bucket, or as many characters of a shorter one.
    """

    corpus: Corpus
    config: PerceiverConfig
    optimization: Optimization
    buckets: tuple[int, ...]
    bucket_weights: tuple[int, ...]
    cost_lengths: tuple[int, ...]
    seed: int = 0

    @classmethod
    def book(cls, corpus: Corpus) -> "PerceiverRecipe":
        """The published sizes; the steps are ours: 1,600, 40 minutes on 2 busy CPU cores."""
        return cls(
            corpus=corpus,
            config=PerceiverConfig.book(len(vocabulary.symbols)),
            optimization=Optimization(
                num_steps=1600,
                batch_size=6,
                learning_rate=2e-3,
                warmup_steps=100,
                use_decay=True,
                max_grad_norm=1.0,
            ),
            buckets=(32, 64, 128, 256, 512, 1024),
            bucket_weights=(1, 1, 3, 4, 5, 2),
            cost_lengths=(1024, 2048, 4096, 8192),
        )

    @classmethod
    def debug(cls, corpus: Corpus) -> "PerceiverRecipe":
        """Seconds; learns nothing worth serving."""
        return cls(
            corpus=corpus,
            config=PerceiverConfig.debug(len(vocabulary.symbols)),
            optimization=Optimization(num_steps=4, batch_size=8, learning_rate=1e-3),
            buckets=(32, 64),
            bucket_weights=(1, 1),
            cost_lengths=(64, 128),
        )

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        return Identity(
            name="perceiver",
            wiring="perceiver",
            config=self.config,
            vocabulary=vocabulary,
            limits={"min_len": 1, "max_len": self.config.max_input_len},
            task={"name": "latents", "mask_token": MASK},
            corpus={
                **self.corpus.describe(),
                "held_out_characters": [HELD_OUT.start, HELD_OUT.stop],
            },
        )

    def batch(self, step: int) -> Batch:
        """Windows of one bucket, each of its own length, with fresh hidden characters."""
        generator = np.random.default_rng((self.seed, step))
        weights = np.array(self.bucket_weights, dtype=np.float64)
        size = int(generator.choice(self.buckets, p=weights / weights.sum()))
        rows = self.optimization.batch_size * max(self.buckets) // size
        shortest = 1 if size == min(self.buckets) else size // 2 + 1
        lengths = generator.integers(shortest, size + 1, rows, dtype=np.int32)
        tokens = windows(
            self.corpus.tokens, _train_starts(generator, self.corpus, size, rows), size
        )
        inputs, _ = draw_masks(generator, tokens, HIDDEN_RATE, self.config.mask_id)
        return {"inputs": inputs, "targets": tokens, "lengths": lengths}

    def loss(self, model: PerceiverAutoencoder, batch: dict[str, Array]) -> Objective:
        """Cross-entropy over all characters, hidden and visible, in nats."""
        logits = model(batch["inputs"], batch["lengths"])
        real = jnp.arange(logits.shape[1])[None] < batch["lengths"][:, None]
        losses = token_losses(logits, batch["targets"])
        return counted(losses, real.astype(losses.dtype))

    def training_figures(self, losses: list[float]) -> Figures:
        """Loss along the way, mean of the last 50 steps."""
        steps = tuple(range(400, len(losses) + 1, 400))
        return {"loss_at_step": smoothed_losses(losses, steps, 50)}

    def evaluate(self, model: PerceiverAutoencoder) -> Figures:
        """Fidelity by length on text that was never trained on, and the cost against attention."""
        held_out = self.corpus.tokens[HELD_OUT]
        return {
            "fidelity": {str(n): fidelity(model, held_out, n) for n in FIDELITY_LENGTHS},
            "held_out_most_frequent": float(np.bincount(held_out).max() / held_out.size),
            "unigram_entropy": unigram_entropy(self.corpus.tokens),
            "cost": measure_cost(self.config, self.cost_lengths).to_json(),
        }

    def plot(self, model: PerceiverAutoencoder, figures: Figures, directory: Path) -> None:
        """Draws fidelity by length and the cost curve."""
        plots.fidelity(
            directory / "fidelity.png", figures["fidelity"], figures["held_out_most_frequent"]
        )
        plots.cost_curve(directory / "cost_curve.png", CostCurve.from_json(figures["cost"]))


def _train_starts(
    generator: np.random.Generator, corpus: Corpus, size: int, rows: int
) -> np.ndarray:
    """Random starts of windows that do not touch the held-out stretch."""
    before = max(HELD_OUT.start - size + 1, 0)
    after = max(corpus.tokens.size - size + 1 - HELD_OUT.stop, 0)
    drawn = generator.integers(0, before + after, rows)
    return np.where(drawn < before, drawn, drawn - before + HELD_OUT.stop)


def fidelity(model: PerceiverAutoencoder, held_out: np.ndarray, size: int) -> dict[str, float]:
    """The shares of visible and of hidden characters read back from windows of ``size``.

    The windows lie side by side and share nothing; the hidden characters are the same every time.
    """
    count = held_out.size // size
    tokens = held_out[: count * size].reshape(count, size)
    generator = np.random.default_rng(size)
    inputs, hidden = draw_masks(generator, tokens, HIDDEN_RATE, model.config.mask_id)
    lengths = np.full(count, size, np.int32)
    predict = jitted(model, _likeliest)
    hits = np.asarray(predict(inputs, lengths)) == tokens
    return {"visible": float(hits[~hidden].mean()), "hidden": float(hits[hidden].mean())}


def _likeliest(
    model: PerceiverAutoencoder, tokens: Int[Array, "B S"], lengths: Int[Array, " B"]
) -> Int[Array, "B S"]:
    return jnp.argmax(model(tokens, lengths), axis=-1)

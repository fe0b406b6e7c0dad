"""Recipe 1: a masked-character encoder over the book's corpus.

Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention".
"""

from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from models.packed import logits_at_once, pack
from models.vocabulary import MASK, Vocabulary
from training import plots
from training.corpus import Corpus, unigram_entropy
from training.masking import asked_positions
from training.recipe import Figures, Identity, smoothed_losses
from training.step import Batch, Objective, Optimization, counted, jitted, token_losses
from training.text_windows import (
    EVALUATION_BATCH,
    WINDOW,
    TextWindows,
    draw_masks,
    position_figures,
)

NUM_PASSES = 5
PROBE = "the time traveller for so it will be convenient to speak of him "
PROBE_POSITIONS = (9, 14, 30)

vocabulary = Vocabulary.english_letters(MASK)


@dataclass(frozen=True, kw_only=True)
class MaskedLMRecipe:
    """Each character is masked with probability ``mask_rate``; loss over masked characters only."""

    corpus: Corpus
    config: TransformerConfig
    optimization: Optimization
    seed: int = 0
    mask_rate: float = 0.15
    num_passes: int = NUM_PASSES

    @classmethod
    def book(cls, corpus: Corpus) -> "MaskedLMRecipe":
        """The published recipe: 2,000 steps, 8 minutes on 2 busy CPU cores, accuracy 0.65."""
        return cls(
            corpus=corpus,
            config=TransformerConfig.book(len(vocabulary.symbols)),
            optimization=Optimization(num_steps=2000, batch_size=64, learning_rate=1e-3),
        )

    @classmethod
    def debug(cls, corpus: Corpus) -> "MaskedLMRecipe":
        """Seconds; learns nothing worth serving."""
        return cls(
            corpus=corpus,
            config=TransformerConfig.debug(len(vocabulary.symbols)),
            optimization=Optimization(num_steps=4, batch_size=8, learning_rate=1e-3),
            num_passes=1,
        )

    @property
    def windows(self) -> TextWindows:
        """The windows to train on and to validate with."""
        return TextWindows(self.corpus, self.seed)

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        return Identity(
            name="masked-lm",
            wiring="encoder",
            config=self.config,
            vocabulary=vocabulary,
            limits={"min_len": 1, "max_len": self.config.max_seq_len},
            task={"name": "fill-mask", "mask_token": MASK, "pooling": "mean"},
            corpus=self.corpus.describe(),
        )

    def batch(self, step: int) -> Batch:
        """Windows with fresh masks."""
        tokens = self.windows.train(step, self.optimization.batch_size)
        generator = np.random.default_rng((self.seed, step, 1))
        inputs, masked = draw_masks(generator, tokens, self.mask_rate, self.config.special_id)
        return {
            "inputs": inputs,
            "targets": tokens,
            "weights": masked.astype(np.float32),
            "positions": asked_positions(masked, self.mask_rate),
        }

    def loss(self, model: MaskedLanguageModel, batch: dict[str, Array]) -> Objective:
        """Cross-entropy over the masked characters, in nats."""
        lengths = jnp.full(batch["inputs"].shape[0], batch["inputs"].shape[1])
        return masked_objective(model, batch, lengths)

    def training_figures(self, losses: list[float]) -> Figures:
        """Masked loss along the way, mean of the last 50 steps."""
        return {"masked_loss_at_step": smoothed_losses(losses, (500, 1000, 2000), 50)}

    def evaluate(self, model: MaskedLanguageModel) -> Figures:
        """Accuracy and loss by position on the validation windows, and the book's three probes."""
        return {
            **window_figures(
                model,
                self.windows.validation(),
                seed=self.seed,
                mask_rate=self.mask_rate,
                num_passes=self.num_passes,
            ),
            "probes": probes(model),
            "unigram_entropy": unigram_entropy(self.corpus.tokens),
        }

    def plot(self, model: MaskedLanguageModel, figures: Figures, directory: Path) -> None:
        """Draws the loss by position."""
        plots.loss_by_position(
            directory / "loss_by_position.png",
            {"masked encoder": figures["validation_loss_by_position"]},
            figures["unigram_entropy"],
        )


def masked_objective(
    model: MaskedLanguageModel, batch: dict[str, Array], lengths: Int[Array, " B"]
) -> Objective:
    """Cross-entropy over the masked characters, in nats.

    All of them are among the ``positions`` of the batch, and nothing is predicted anywhere else.
    """
    positions = batch["positions"]
    logits = logits_at_once(pack(model), batch["inputs"], lengths, positions)
    targets = jnp.take_along_axis(batch["targets"], positions, axis=1)
    weights = jnp.take_along_axis(batch["weights"], positions, axis=1)
    return counted(token_losses(logits, targets), weights)


def window_figures(
    model: MaskedLanguageModel, tokens: np.ndarray, *, seed: int, mask_rate: float, num_passes: int
) -> Figures:
    """Accuracy, loss and loss by position on windows (B, 64), several times with fresh masks."""
    generator = np.random.default_rng((seed, 2))
    hits, losses, counts = (np.zeros(WINDOW) for _ in range(3))
    measure = jitted(model, _measure)
    for _ in range(num_passes):
        inputs, masked = draw_masks(generator, tokens, mask_rate, model.config.special_id)
        for first in range(0, len(tokens), EVALUATION_BATCH):
            part = slice(first, first + EVALUATION_BATCH)
            hit, loss = measure(inputs[part], tokens[part])
            hits += (np.asarray(hit) * masked[part]).sum(axis=0)
            losses += (np.asarray(loss) * masked[part]).sum(axis=0)
            counts += masked[part].sum(axis=0)
    return {
        "masked_accuracy": float(hits.sum() / counts.sum()),
        "validation_loss": float(losses.sum() / counts.sum()),
        **position_figures(losses / counts),
    }


def _measure(
    model: MaskedLanguageModel, inputs: Int[Array, "B T"], targets: Int[Array, "B T"]
) -> tuple[Bool[Array, "B T"], Float[Array, "B T"]]:
    logits = model(inputs, jnp.full(inputs.shape[0], inputs.shape[1]))
    return jnp.argmax(logits, axis=-1) == targets, token_losses(logits, targets)


def probes(model: MaskedLanguageModel) -> list[Figures]:
    """The three likeliest characters at each position of the book's probe text, masked there."""
    rows = np.tile(vocabulary.encode(PROBE), (len(PROBE_POSITIONS), 1))
    order = np.arange(len(rows))
    rows[order, PROBE_POSITIONS] = vocabulary.special_id(MASK)
    lengths = np.full(len(rows), len(PROBE), np.int32)
    probs = np.asarray(jitted(model, MaskedLanguageModel.predict)(rows, lengths)[0])
    found = []
    for position, row in zip(PROBE_POSITIONS, probs[order, PROBE_POSITIONS], strict=True):
        text = PROBE[:position] + MASK + PROBE[position + 1 :]
        best = np.argsort(-row)[:3]
        found.append({"text": text, "top": [[vocabulary.symbols[i], float(row[i])] for i in best]})
    return found

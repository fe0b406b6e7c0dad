"""Recipe 4: a causal decoder over the same windows, the one-sided baseline of recipe 1.

Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention".
"""

from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from models.blocks import TransformerConfig
from models.decoder import CausalLanguageModel
from models.packed import PackedDecoder, pack_decoder
from models.vocabulary import BOS, Vocabulary
from training import plots
from training.corpus import Corpus, unigram_entropy
from training.recipe import Figures, Identity, smoothed_losses
from training.step import Batch, Objective, Optimization, counted, jitted, token_losses
from training.text_windows import EVALUATION_BATCH, TextWindows, position_figures

vocabulary = Vocabulary.english_letters(BOS)


@dataclass(frozen=True, kw_only=True)
class CausalLMRecipe:
    """Every character of a window is predicted from those before it, the first from ``<bos>``."""

    corpus: Corpus
    config: TransformerConfig
    optimization: Optimization
    seed: int = 0

    @classmethod
    def book(cls, corpus: Corpus) -> "CausalLMRecipe":
        """Sizes and windows of the masked recipe, in 700 steps: 10 minutes on 2 busy CPU cores.

        Every character is a target here, not one in seven, so the 2,000 steps at a constant
        learning rate that suit the masked recipe end far past the best validation loss: 2.88 nats,
        above the unigram entropy, against about 1.6 after 500 steps with decay.
        """
        return cls(
            corpus=corpus,
            config=TransformerConfig.book(len(vocabulary.symbols)),
            optimization=Optimization(
                num_steps=700,
                batch_size=64,
                learning_rate=1e-3,
                weight_decay=0.1,
                warmup_steps=50,
                use_decay=True,
                max_grad_norm=1.0,
            ),
        )

    @classmethod
    def debug(cls, corpus: Corpus) -> "CausalLMRecipe":
        """Seconds; learns nothing worth serving."""
        return cls(
            corpus=corpus,
            config=TransformerConfig.debug(len(vocabulary.symbols)),
            optimization=Optimization(num_steps=4, batch_size=8, learning_rate=1e-3),
        )

    @property
    def windows(self) -> TextWindows:
        """The windows to train on and to validate with."""
        return TextWindows(self.corpus, self.seed)

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        return Identity(
            name="causal-lm",
            wiring="decoder",
            config=self.config,
            vocabulary=vocabulary,
            limits={"min_len": 0, "max_len": self.config.max_seq_len - 1},
            task={"name": "complete"},
            corpus=self.corpus.describe(),
        )

    def batch(self, step: int) -> Batch:
        """Windows, whole."""
        return {"targets": self.windows.train(step, self.optimization.batch_size)}

    def loss(self, model: CausalLanguageModel, batch: dict[str, Array]) -> Objective:
        """Cross-entropy over all characters, in nats."""
        losses = next_token_losses(pack_decoder(model), batch["targets"])[1]
        return counted(losses, jnp.ones_like(losses))

    def training_figures(self, losses: list[float]) -> Figures:
        """Loss along the way, mean of the last 50 steps."""
        return {"loss_at_step": smoothed_losses(losses, (100, 300, 500, 700), 50)}

    def evaluate(self, model: CausalLanguageModel) -> Figures:
        """Accuracy and loss by position on the validation windows."""
        return {
            **window_figures(model, self.windows.validation()),
            "unigram_entropy": unigram_entropy(self.corpus.tokens),
        }

    def plot(self, model: CausalLanguageModel, figures: Figures, directory: Path) -> None:
        """Draws the loss by position."""
        plots.loss_by_position(
            directory / "loss_by_position.png",
            {"causal decoder": figures["validation_loss_by_position"]},
            figures["unigram_entropy"],
        )


def window_figures(model: CausalLanguageModel, tokens: np.ndarray) -> Figures:
    """Accuracy, loss and loss by position on windows (B, 64)."""
    measure = jitted(model, next_token_losses)
    parts = [
        [np.asarray(part) for part in measure(tokens[first : first + EVALUATION_BATCH])]
        for first in range(0, len(tokens), EVALUATION_BATCH)
    ]
    hits, losses = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {
        "accuracy": float(hits.mean()),
        "validation_loss": float(losses.mean()),
        **position_figures(losses.mean(axis=0)),
    }


def next_token_losses(
    model: CausalLanguageModel | PackedDecoder, tokens: Int[Array, "B T"]
) -> tuple[Bool[Array, "B T"], Float[Array, "B T"]]:
    """Whether each token is the likeliest after those before it, and its cross-entropy in nats."""
    batch, size = tokens.shape
    bos = jnp.full((batch, 1), model.config.special_id, tokens.dtype)
    inputs = jnp.concatenate([bos, tokens[:, :-1]], axis=1)
    logits = model(inputs, jnp.full(batch, size))
    return jnp.argmax(logits, axis=-1) == tokens, token_losses(logits, tokens)

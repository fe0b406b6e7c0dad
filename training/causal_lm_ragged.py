"""Recipe 4 for use: one causal decoder for texts of any length up to 128 characters.

The same text, windows and width as the masked encoder for use, so that the two can be compared:
what a model knows from one side against what it knows from two.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from models.blocks import TransformerConfig
from models.checkpoint import CheckpointError, find_bundle, read_card
from models.decoder import CausalLanguageModel
from models.packed import pack_decoder
from models.vocabulary import Vocabulary
from training import causal_lm, plots
from training.causal_lm import next_token_losses
from training.context import MAX_VALIDATION, held_out_windows
from training.corpus import Corpus, unigram_entropy
from training.masked_lm_ragged import RaggedMaskedLMRecipe
from training.recipe import Figures, Identity, smoothed_losses
from training.step import Batch, Objective, Optimization, counted, jitted
from training.text_mixture import TextMixture
from training.text_windows import BOOK_HELD_OUT, EVALUATION_BATCH, WINDOW, without

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


@dataclass(frozen=True, kw_only=True)
class RaggedCausalLMRecipe:
    """Every character of windows of any length from those before it, the first from ``<bos>``.

    The fields are those of the masked recipe.
    """

    corpus: Corpus
    others: tuple[Corpus, ...]
    vocabulary: Vocabulary
    config: TransformerConfig
    optimization: Optimization
    name: str = "causal-lm"
    seed: int = 0
    main_share: float = 0.8
    buckets: tuple[int, ...] = (16, 32, 64, 128)
    bucket_weights: tuple[int, ...] = (1, 1, 2, 6)
    steps_per_bucket: int = 50

    @classmethod
    def default(cls, corpus: Corpus, others: tuple[Corpus, ...]) -> "RaggedCausalLMRecipe":
        """The text and the sizes of the masked recipe; fewer steps, as every character counts."""
        vocabulary = causal_lm.vocabulary
        masked = RaggedMaskedLMRecipe.default(corpus, others)
        return cls(
            corpus=without(corpus, BOOK_HELD_OUT),
            others=others,
            vocabulary=vocabulary,
            config=masked.config,
            optimization=Optimization(
                num_steps=4000,
                batch_size=32,
                learning_rate=2e-3,
                weight_decay=0.05,
                warmup_steps=200,
                use_decay=True,
                max_grad_norm=1.0,
                steps_per_dispatch=10,
            ),
        )

    @classmethod
    def own(cls, corpus: Corpus, vocabulary: Vocabulary, name: str) -> "RaggedCausalLMRecipe":
        """Any text: the sizes of the masked recipe for it, in half the steps."""
        masked = RaggedMaskedLMRecipe.own(corpus, vocabulary, name)
        return cls(
            corpus=corpus,
            others=(),
            vocabulary=vocabulary,
            name=name,
            config=masked.config,
            optimization=replace(masked.optimization, num_steps=800),
            steps_per_bucket=masked.steps_per_bucket,
        )

    @classmethod
    def own_debug(cls, corpus: Corpus, vocabulary: Vocabulary, name: str) -> "RaggedCausalLMRecipe":
        """Seconds; learns nothing worth serving."""
        masked = RaggedMaskedLMRecipe.own_debug(corpus, vocabulary, name)
        return cls(
            corpus=corpus,
            others=(),
            vocabulary=vocabulary,
            name=name,
            config=masked.config,
            optimization=masked.optimization,
            buckets=masked.buckets,
            bucket_weights=masked.bucket_weights,
        )

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        return Identity(
            name=self.name,
            wiring="decoder",
            config=self.config,
            vocabulary=self.vocabulary,
            limits={"min_len": 0, "max_len": self.config.max_seq_len - 1},
            task={"name": "complete"},
            corpus={
                **self.corpus.describe(),
                **({"beside": [other.describe() for other in self.others]} if self.others else {}),
            },
        )

    @property
    def mixture(self) -> TextMixture:
        """Where the windows come from."""
        return TextMixture(
            main=self.corpus,
            others=self.others,
            main_share=self.main_share,
            buckets=self.buckets,
            bucket_weights=self.bucket_weights,
            steps_per_bucket=self.steps_per_bucket,
            seed=self.seed,
        )

    def batch(self, step: int) -> Batch:
        """Windows of one bucket, each of its own length."""
        generator = np.random.default_rng((self.seed, step, 1))
        tokens, lengths = self.mixture.draw(generator, step, self.optimization.batch_size)
        return {"targets": tokens, "lengths": lengths}

    def loss(self, model: CausalLanguageModel, batch: dict[str, Array]) -> Objective:
        """Cross-entropy over all characters, in nats."""
        losses = next_token_losses(pack_decoder(model), batch["targets"])[1]
        # Nothing before it sees the padding that ends a row.
        real = jnp.arange(losses.shape[1])[None] < batch["lengths"][:, None]
        return counted(losses, real.astype(losses.dtype))

    def training_figures(self, losses: list[float]) -> Figures:
        """Loss along the way, mean of the last 200 steps: over lengths."""
        steps = tuple(range(1000, len(losses) + 1, 1000))
        return {"loss_at_step": smoothed_losses(losses, steps, 200)}

    def evaluate(self, model: CausalLanguageModel) -> Figures:
        """Held-out windows as the book has them, and the longest that the model reads."""
        tokens = held_out_windows(self.corpus, WINDOW, MAX_VALIDATION)
        return {
            **causal_lm.window_figures(model, tokens),
            "unigram_entropy": unigram_entropy(self.corpus.tokens),
            "longest_windows": longest_windows(model, self.corpus),
        }

    def plot(self, model: CausalLanguageModel, figures: Figures, directory: Path) -> None:
        """Draws the loss by position, and beside it that of the masked encoder if there is one."""
        curve = figures["validation_loss_by_position"]
        entropy = figures["unigram_entropy"]
        plots.loss_by_position(directory / "loss_by_position.png", {"causal": curve}, entropy)
        masked = masked_loss_by_position(CHECKPOINTS, self.corpus)
        if masked:
            plots.loss_by_position(
                directory / "one_side_against_two.png",
                {"causal decoder: the left side": curve, "masked encoder: both sides": masked},
                entropy,
            )


def longest_windows(model: CausalLanguageModel, corpus: Corpus) -> Figures:
    """Loss on windows as long as the model reads, over all positions and at the last quarter."""
    tokens = held_out_windows(corpus, model.config.max_seq_len)
    measure = jitted(model, next_token_losses)
    losses = np.concatenate(
        [
            np.asarray(measure(tokens[first : first + EVALUATION_BATCH])[1])
            for first in range(0, len(tokens), EVALUATION_BATCH)
        ]
    )
    by_position = losses.mean(axis=0)
    return {
        "length": tokens.shape[1],
        "loss": float(by_position.mean()),
        "loss_of_last_quarter": float(by_position[-(tokens.shape[1] // 4) :].mean()),
        "loss_by_position": by_position.tolist(),
    }


def masked_loss_by_position(checkpoints: Path, corpus: Corpus) -> list[float] | None:
    """What the newest masked encoder has on the same windows; None if it is of other text."""
    try:
        card, _ = read_card(find_bundle(checkpoints, "masked-lm"))
    except CheckpointError:
        return None
    if card.corpus.get("sha256") != corpus.sha256:
        return None
    return card.figures.get("validation_loss_by_position")

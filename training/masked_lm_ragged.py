"""Recipe 1 for use: one masked-character encoder for windows of any length up to 128.

Every row has a length of its own and masks in a style of its own (training/masking.py), and the
text is the book, all but what it is validated with, beside more public text.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Array

from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from models.vocabulary import MASK, Vocabulary
from training import masked_lm, plots
from training.context import (
    MASK_RATE,
    MAX_VALIDATION,
    book_model_figures,
    context_figures,
    held_out_windows,
)
from training.corpus import Corpus, unigram_entropy
from training.masking import SINGLE_RATES, asked_positions, draw_mixed_masks
from training.recipe import Figures, Identity, smoothed_losses
from training.step import Batch, Objective, Optimization
from training.text_mixture import TextMixture
from training.text_windows import BOOK_HELD_OUT, WINDOW, without


@dataclass(frozen=True, kw_only=True)
class RaggedMaskedLMRecipe:
    """Masked characters of windows of any length, in one text that counts and others beside it.

    ``mask_weights`` say how often a row has each style of masks (see ``draw_mixed_masks``);
    ``main_share`` of the rows are from ``corpus``, the others from ``others``; a step holds
    ``optimization.batch_size`` rows of the longest of ``buckets`` or as many characters.
    """

    corpus: Corpus
    others: tuple[Corpus, ...]
    vocabulary: Vocabulary
    config: TransformerConfig
    optimization: Optimization
    name: str = "masked-lm"
    seed: int = 0
    main_share: float = 0.8
    mask_weights: tuple[float, ...] = (0.3, 0.35, 0.2, 0.15)
    buckets: tuple[int, ...] = (16, 32, 48, 64, 96, 128)
    bucket_weights: tuple[int, ...] = (2, 3, 3, 6, 2, 4)
    steps_per_bucket: int = 50
    num_passes: int = masked_lm.NUM_PASSES

    @classmethod
    def default(cls, corpus: Corpus, others: tuple[Corpus, ...]) -> "RaggedMaskedLMRecipe":
        """The book and a little of other text, every length from 1 to 128."""
        vocabulary = masked_lm.vocabulary
        return cls(
            corpus=without(corpus, BOOK_HELD_OUT),
            others=others,
            vocabulary=vocabulary,
            config=TransformerConfig(
                vocab_size=len(vocabulary.symbols),
                embed_dim=128,
                num_heads=4,
                num_layers=4,
                max_seq_len=128,
            ),
            optimization=Optimization(
                num_steps=18_000,
                batch_size=24,
                learning_rate=2e-3,
                weight_decay=0.05,
                warmup_steps=200,
                use_decay=True,
                max_grad_norm=1.0,
                steps_per_dispatch=10,
            ),
        )

    @classmethod
    def own(cls, corpus: Corpus, vocabulary: Vocabulary, name: str) -> "RaggedMaskedLMRecipe":
        """Any text: the book's width and depth, windows to 128; half an hour on 2 busy CPU cores.

        A text of 300,000 Russian characters ended at an accuracy of 0.42, still rising.
        """
        return cls(
            corpus=corpus,
            others=(),
            vocabulary=vocabulary,
            name=name,
            config=TransformerConfig(
                vocab_size=len(vocabulary.symbols),
                embed_dim=128,
                num_heads=4,
                num_layers=4,
                max_seq_len=128,
            ),
            optimization=Optimization(
                num_steps=1500,
                batch_size=32,
                learning_rate=2e-3,
                weight_decay=0.05,
                warmup_steps=100,
                use_decay=True,
                max_grad_norm=1.0,
            ),
            # Attention leaves its plateau sooner where there is less to look at.
            buckets=(16, 32, 64, 128),
            bucket_weights=(3, 3, 3, 1),
            steps_per_bucket=10,
        )

    @classmethod
    def own_debug(cls, corpus: Corpus, vocabulary: Vocabulary, name: str) -> "RaggedMaskedLMRecipe":
        """Seconds; learns nothing worth serving."""
        return cls(
            corpus=corpus,
            others=(),
            vocabulary=vocabulary,
            name=name,
            config=TransformerConfig.debug(len(vocabulary.symbols)),
            optimization=Optimization(num_steps=4, batch_size=8, learning_rate=1e-3),
            buckets=(16, 64),
            bucket_weights=(1, 1),
            num_passes=1,
        )

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        return Identity(
            name=self.name,
            wiring="encoder",
            config=self.config,
            vocabulary=self.vocabulary,
            limits={"min_len": 1, "max_len": self.config.max_seq_len},
            task={"name": "fill-mask", "mask_token": MASK, "pooling": "mean"},
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
        """Windows of one bucket, each of its own length and with masks of its own style."""
        generator = np.random.default_rng((self.seed, step, 1))
        tokens, lengths = self.mixture.draw(generator, step, self.optimization.batch_size)
        masked = draw_mixed_masks(generator, lengths, tokens.shape[1], self.mask_weights)
        return {
            "inputs": np.where(masked, np.int32(self.config.special_id), tokens),
            "targets": tokens,
            "weights": masked.astype(np.float32),
            "positions": asked_positions(masked, max(SINGLE_RATES.values())),
            "lengths": lengths,
        }

    def loss(self, model: MaskedLanguageModel, batch: dict[str, Array]) -> Objective:
        """Cross-entropy over the masked characters, in nats."""
        return masked_lm.masked_objective(model, batch, batch["lengths"])

    def training_figures(self, losses: list[float]) -> Figures:
        """Loss along the way, mean of the last 200 steps: over styles and lengths."""
        steps = tuple(range(1000, len(losses) + 1, 1000))
        return {"loss_at_step": smoothed_losses(losses, steps, 200)}

    def evaluate(self, model: MaskedLanguageModel) -> Figures:
        """Held-out windows as the book measures them, and what length and one side cost."""
        tokens = held_out_windows(self.corpus, WINDOW, MAX_VALIDATION)
        return {
            **masked_lm.window_figures(
                model, tokens, seed=self.seed, mask_rate=MASK_RATE, num_passes=self.num_passes
            ),
            "unigram_entropy": unigram_entropy(self.corpus.tokens),
            **context_figures(model, self.corpus, self.seed),
            **self._beside_the_book(model),
        }

    def _beside_the_book(self, model: MaskedLanguageModel) -> Figures:
        """What only a model of the book's vocabulary can be asked."""
        if self.vocabulary != masked_lm.vocabulary:
            return {}
        return {
            "probes": masked_lm.probes(model),
            **book_model_figures(self.corpus, self.seed),
        }

    def plot(self, model: MaskedLanguageModel, figures: Figures, directory: Path) -> None:
        """Draws the loss by position and by length."""
        plots.loss_by_position(
            directory / "loss_by_position.png",
            {"masked encoder": figures["validation_loss_by_position"]},
            figures["unigram_entropy"],
        )
        plots.loss_by_length(
            directory / "loss_by_length.png",
            {length: one["loss"] for length, one in figures["by_length"].items()},
            figures["unigram_entropy"],
        )

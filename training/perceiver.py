"""Recipe 3: a Perceiver that reads text into latents and is asked for all of it back.

15 % of the characters are hidden on the way in and all are asked for on the way out, so the
latents must copy what they see and infer what they do not. One model serves every length, so each
step draws one length bucket and gives every row a length of its own in it.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention"; the objective
from Perceiver IO, Jaegle et al. (2021), arXiv:2107.14795, section 4.1.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from models.perceiver import PerceiverAutoencoder, PerceiverConfig
from models.vocabulary import MASK, Vocabulary
from training import plots
from training.corpus import Corpus, unigram_entropy
from training.cost_curve import CostCurve, measure_cost
from training.recipe import Figures, Identity, smoothed_losses
from training.retrieval import most_passages, retrieval_figures
from training.step import Batch, Objective, Optimization, counted, jitted, token_losses
from training.text_mixture import TextMixture
from training.text_windows import draw_masks, without

HELD_OUT = slice(100_000, 116_384)
FIDELITY_LENGTHS = (64, 128, 256, 512, 1024, 4096)
ALL_LENGTHS = (1, 2, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Short windows are many; so many of them, and no more at once than fit everywhere.
MAX_WINDOWS, MAX_ROWS = 1024, 256
HIDDEN_RATE = 0.15

vocabulary = Vocabulary.english_letters(MASK)


@dataclass(frozen=True, kw_only=True)
class PerceiverRecipe:
    """Masked reconstruction of text windows through the bottleneck.

    ``buckets`` are the longest lengths of a step, ``bucket_weights`` how often each is drawn; a
    step holds ``batch_size`` rows of the longest bucket, or as many characters of a shorter one. A
    bucket is kept for ``steps_per_bucket`` steps in a row, so that those can be sent to the device
    together. ``main_share`` of the rows are from ``corpus``, the others from ``others`` in equal
    parts.
    """

    corpus: Corpus
    config: PerceiverConfig
    optimization: Optimization
    buckets: tuple[int, ...]
    bucket_weights: tuple[int, ...]
    cost_lengths: tuple[int, ...]
    name: str = "perceiver"
    vocabulary: Vocabulary = vocabulary
    seed: int = 0
    others: tuple[Corpus, ...] = ()
    main_share: float = 1.0
    steps_per_bucket: int = 1
    fidelity_lengths: tuple[int, ...] = FIDELITY_LENGTHS
    num_passages: int = 0

    @classmethod
    def book(cls, corpus: Corpus) -> "PerceiverRecipe":
        """The published sizes; the steps are ours: 1,600, 40 minutes on 2 busy CPU cores."""
        return cls(
            corpus=_without_held_out(corpus),
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
    def default(cls, corpus: Corpus, others: tuple[Corpus, ...]) -> "PerceiverRecipe":
        """The published sizes, on every length from 1 to 8,192; two hours on one CPU core."""
        return cls(
            corpus=_without_held_out(corpus),
            others=others,
            main_share=0.5,
            config=PerceiverConfig.book(len(vocabulary.symbols)),
            optimization=Optimization(
                num_steps=2000,
                batch_size=2,
                learning_rate=2e-3,
                weight_decay=0.01,
                warmup_steps=200,
                use_decay=True,
                max_grad_norm=1.0,
                steps_per_dispatch=10,
            ),
            buckets=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
            bucket_weights=(2, 2, 3, 6, 8, 9, 4, 1, 1, 1),
            steps_per_bucket=10,
            cost_lengths=(1024, 2048, 4096, 8192),
            fidelity_lengths=ALL_LENGTHS,
            num_passages=500,
        )

    @classmethod
    def own(cls, corpus: Corpus, vocabulary: Vocabulary, name: str) -> "PerceiverRecipe":
        """Any text: the book's sizes and steps, for lengths to 1,024; 40 minutes on 2 CPU cores."""
        book = cls.book(corpus)
        return replace(
            book,
            corpus=corpus,
            vocabulary=vocabulary,
            name=name,
            config=replace(
                book.config, vocab_size=len(vocabulary.symbols), max_input_len=max(book.buckets)
            ),
            cost_lengths=(),
            fidelity_lengths=tuple(size for size in ALL_LENGTHS if size <= max(book.buckets)),
            num_passages=500,
            steps_per_bucket=10,
        )

    @classmethod
    def own_debug(cls, corpus: Corpus, vocabulary: Vocabulary, name: str) -> "PerceiverRecipe":
        """Seconds; learns nothing worth serving."""
        debug = cls.debug(corpus)
        return replace(
            debug,
            corpus=corpus,
            vocabulary=vocabulary,
            name=name,
            config=replace(debug.config, vocab_size=len(vocabulary.symbols)),
            cost_lengths=(),
        )

    @classmethod
    def debug(cls, corpus: Corpus) -> "PerceiverRecipe":
        """Seconds; learns nothing worth serving."""
        return cls(
            corpus=_without_held_out(corpus),
            config=PerceiverConfig.debug(len(vocabulary.symbols)),
            optimization=Optimization(num_steps=4, batch_size=8, learning_rate=1e-3),
            buckets=(32, 64),
            bucket_weights=(1, 1),
            cost_lengths=(64, 128),
            fidelity_lengths=(64, 128),
        )

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        return Identity(
            name=self.name,
            wiring="perceiver",
            config=self.config,
            vocabulary=self.vocabulary,
            limits={"min_len": 1, "max_len": self.config.max_input_len},
            task={"name": "latents", "mask_token": MASK, "pooling": "mean"},
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
        """Windows of one bucket, each of its own length, with fresh hidden characters."""
        generator = np.random.default_rng((self.seed, step))
        tokens, lengths = self.mixture.draw(generator, step, self.optimization.batch_size)
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
        tokens = self.corpus.tokens
        held_out = held_out_tokens(self.corpus, 1)
        cost = measure_cost(self.config, self.cost_lengths).to_json() if self.cost_lengths else None
        return {
            "fidelity": {
                str(size): fidelity(model, text, size)
                for size in self.fidelity_lengths
                if (text := held_out_tokens(self.corpus, size)).size
            },
            **self._retrieval(model),
            "held_out_most_frequent": float(np.bincount(held_out).max() / held_out.size),
            "unigram_entropy": unigram_entropy(tokens),
            **({"cost": cost} if cost else {}),
        }

    def _retrieval(self, model: PerceiverAutoencoder) -> Figures:
        tokens = self.corpus.tokens
        count = min(self.num_passages, most_passages(tokens.size))
        return {"retrieval": retrieval_figures(model, tokens, count)} if count else {}

    def plot(self, model: PerceiverAutoencoder, figures: Figures, directory: Path) -> None:
        """Draws fidelity by length and the cost curve."""
        plots.fidelity(
            directory / "fidelity.png", figures["fidelity"], figures["held_out_most_frequent"]
        )
        if "cost" in figures:
            plots.cost_curve(directory / "cost_curve.png", CostCurve.from_json(figures["cost"]))


def _without_held_out(corpus: Corpus) -> Corpus:
    return without(corpus, (HELD_OUT.start, HELD_OUT.stop))


def held_out_tokens(corpus: Corpus, size: int) -> np.ndarray:
    """What windows of ``size``, side by side, cover of each held-out stretch."""
    parts = [
        corpus.tokens[first : first + (end - first) // size * size]
        for first, end in corpus.held_out
    ]
    return np.concatenate(parts or [np.empty(0, np.int32)])


def fidelity(model: PerceiverAutoencoder, held_out: np.ndarray, size: int) -> dict[str, float]:
    """The shares of visible and of hidden characters read back from windows of ``size``.

    At most 1,024 windows lie side by side and share nothing; the hidden characters are the same
    every time.
    """
    count = min(held_out.size // size, MAX_WINDOWS)
    tokens = held_out[: count * size].reshape(count, size)
    generator = np.random.default_rng(size)
    inputs, hidden = draw_masks(generator, tokens, HIDDEN_RATE, model.config.mask_id)
    predict = jitted(model, _likeliest)
    parts = []
    for first in range(0, count, MAX_ROWS):
        part = inputs[first : first + MAX_ROWS]
        parts.append(np.asarray(predict(part, np.full(len(part), size, np.int32))))
    hits = np.concatenate(parts) == tokens
    return {"visible": float(hits[~hidden].mean()), "hidden": float(hits[hidden].mean())}


def _likeliest(
    model: PerceiverAutoencoder, tokens: Int[Array, "B S"], lengths: Int[Array, " B"]
) -> Int[Array, "B S"]:
    return jnp.argmax(model(tokens, lengths), axis=-1)

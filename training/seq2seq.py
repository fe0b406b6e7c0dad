"""Recipe for any file of pairs: an encoder-decoder from one sequence of symbols to another.

Spelling to pronunciation, one script to another, singular to plural: whatever can be written as a
source and a target on one line (training/pairs.py). Source: Vaswani et al. (2017),
arXiv:1706.03762, with the block of the other recipes; noise on the decoder's inputs after Bowman
et al. (2015), arXiv:1511.06349, section 3.1.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Array

from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.vocabulary import BOS, EOS
from training import plots
from training.pairs import PairCorpus, Pairs, PairsError
from training.ragged import draw_bucket
from training.recipe import Figures, Identity, smoothed_losses
from training.sequences import (
    decode_all,
    decode_with_attention,
    error_rates,
    make_batch,
    pad,
    sequence_loss,
)
from training.step import Batch, Objective, Optimization, jitted

NUM_BEAMS = 4
BUCKETS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqRecipe:
    """Pairs in buckets of similar length, every pair as likely as any other.

    A step holds ``batch_size`` pairs of the longest bucket, or as many symbols of a shorter one.
    ``input_noise`` is the share of the decoder's inputs that are replaced by random symbols, so
    that it also relies on the source where it has gone wrong itself.
    """

    corpus: PairCorpus
    name: str
    config: EncoderDecoderConfig
    optimization: Optimization
    seed: int = 0
    input_noise: float = 0.0

    @classmethod
    def default(cls, corpus: PairCorpus, name: str) -> "Seq2SeqRecipe":
        """Three blocks on either side of width 128, 1.4 million parameters."""
        return cls(
            corpus=corpus,
            name=name,
            config=_config(corpus, embed_dim=128, num_heads=4, num_layers=3),
            optimization=Optimization(
                num_steps=12_000,
                batch_size=64,
                learning_rate=1.5e-3,
                weight_decay=0.05,
                warmup_steps=400,
                use_decay=True,
                max_grad_norm=1.0,
                steps_per_dispatch=20,
            ),
            input_noise=0.05,
        )

    @classmethod
    def debug(cls, corpus: PairCorpus, name: str) -> "Seq2SeqRecipe":
        """Seconds; learns nothing worth serving."""
        return cls(
            corpus=corpus,
            name=name,
            config=_config(corpus, embed_dim=16, num_heads=2, num_layers=1),
            optimization=Optimization(num_steps=4, batch_size=8, learning_rate=1e-3),
        )

    def __post_init__(self) -> None:
        rows = self.optimization.batch_size
        if len(self.corpus.train) < rows:
            raise PairsError(
                f"{self.corpus.name}: expected at least a batch of {rows} pairs to train on, got "
                f"{len(self.corpus.train)}; the rest is held out"
            )

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        return Identity(
            name=self.name,
            wiring="encoder-decoder",
            config=self.config,
            vocabulary=self.corpus.source_vocabulary,
            target_vocabulary=self.corpus.target_vocabulary,
            limits={"min_len": 1, "max_len": self.config.max_source_len},
            task={"name": "decode"},
            corpus=self.corpus.describe(),
        )

    @functools.cached_property
    def _buckets(self) -> dict[int, Pairs]:
        return _in_buckets(self.corpus.train)

    def batch(self, step: int) -> Batch:
        """Random pairs of one bucket; steps that are dispatched together share the bucket."""
        buckets = self._buckets
        longest = max(buckets)
        num_rows = {size: self.optimization.batch_size * (longest // size) for size in buckets}
        group = step // self.optimization.steps_per_dispatch
        weights = [len(pairs) / num_rows[size] for size, pairs in buckets.items()]
        size = draw_bucket(np.random.default_rng((self.seed, group, 1)), list(buckets), weights)
        generator = np.random.default_rng((self.seed, step))
        chosen = generator.integers(0, len(buckets[size]), num_rows[size])
        source = pad([buckets[size].sources[index] for index in chosen], size)
        target = pad([buckets[size].targets[index] for index in chosen], size)
        batch = make_batch(self.config, *source, *target)
        return batch | {"inputs": self._noisy(generator, batch["inputs"])}

    def _noisy(self, generator: np.random.Generator, inputs: np.ndarray) -> np.ndarray:
        noise = generator.random(inputs.shape) < self.input_noise
        noise[:, 0] = False
        num_symbols = len(self.corpus.target_vocabulary.symbols)
        return np.where(noise, generator.integers(0, num_symbols, inputs.shape, np.int32), inputs)

    def loss(self, model: EncoderDecoder, batch: dict[str, Array]) -> Objective:
        """Cross-entropy over the symbols of the target and its end, in nats."""
        return sequence_loss(model, batch)

    def training_figures(self, losses: list[float]) -> Figures:
        """Loss along the way, mean of the last 50 steps."""
        return {"loss_at_step": smoothed_losses(losses, _milestones(len(losses)), 50)}

    def evaluate(self, model: EncoderDecoder) -> Figures:
        """Error rates on the held-out pairs, greedily and by beam search."""
        return measure(model, self.corpus.held_out)

    def plot(self, model: EncoderDecoder, figures: Figures, directory: Path) -> None:
        """Draws the cross-attention of a held-out source, and the error rate by source length."""
        source = max(self.corpus.held_out.sources[:100], key=len)
        run = jitted(model, decode_with_attention)
        decoded, maps = run(source[None], np.array([len(source)], np.int32))
        tokens = np.asarray(decoded.tokens)[0, : int(decoded.lengths[0])]
        plots.alignment(
            directory / "alignment.png",
            np.asarray(maps)[0, -1][:, : len(tokens)],
            [self.corpus.source_vocabulary.tokens[index] for index in source],
            [self.corpus.target_vocabulary.tokens[index] for index in tokens],
        )
        plots.errors_by_length(directory / "errors_by_length.png", figures["by_source_length"])


def _config(
    corpus: PairCorpus, *, embed_dim: int, num_heads: int, num_layers: int
) -> EncoderDecoderConfig:
    everything = (corpus.train, corpus.held_out)
    longest_source = max(len(row) for pairs in everything for row in pairs.sources)
    longest_target = max(len(row) for pairs in everything for row in pairs.targets)
    target = corpus.target_vocabulary
    # Batches have one size on either side, and room for the end of a target.
    size = _bucket(max(longest_source, longest_target + 1))
    return EncoderDecoderConfig(
        source_vocab_size=len(corpus.source_vocabulary.tokens),
        target_vocab_size=len(target.tokens),
        bos_id=target.special_id(BOS),
        eos_id=target.special_id(EOS),
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_encoder_layers=num_layers,
        num_decoder_layers=num_layers,
        max_source_len=size,
        max_target_len=size,
    )


def _bucket(length: int) -> int:
    return min((size for size in BUCKETS if size >= length), default=length)


def _in_buckets(pairs: Pairs) -> dict[int, Pairs]:
    """The pairs by the bucket that holds source, target and its end, in order of size."""
    members: dict[int, list[int]] = {}
    for index, (source, target) in enumerate(zip(pairs.sources, pairs.targets, strict=True)):
        members.setdefault(_bucket(max(len(source), len(target) + 1)), []).append(index)
    return {
        size: Pairs(
            tuple(pairs.sources[index] for index in members[size]),
            tuple(pairs.targets[index] for index in members[size]),
        )
        for size in sorted(members)
    }


def _milestones(num_steps: int) -> tuple[int, ...]:
    return tuple(num_steps * part // 4 for part in range(1, 5) if num_steps >= 4)


def measure(model: EncoderDecoder, pairs: Pairs) -> Figures:
    """Error rates over the sources of ``pairs``; a source may have several right answers."""
    sources, references = pairs.by_source()
    greedy = decode_all(model, sources)
    found = decode_all(model, sources, num_beams=NUM_BEAMS)
    by_length: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        by_length.setdefault(len(source), []).append(index)
    return {
        "num_sources": len(sources),
        "num_pairs": len(pairs),
        "greedy": error_rates(greedy, references),
        f"beam_{NUM_BEAMS}": error_rates(found, references),
        "by_source_length": {
            str(length): {
                "num_sources": len(rows),
                **error_rates([found[i] for i in rows], [references[i] for i in rows]),
            }
            for length, rows in sorted(by_length.items())
        },
    }

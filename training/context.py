"""What context is worth to a masked encoder: by length, by span, and from one side alone.

Everything is measured on the held-out stretches of a corpus, whole windows at a time.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from models.checkpoint import CheckpointError, load_model
from models.encoder import MaskedLanguageModel
from training.corpus import Corpus, windows
from training.recipe import Figures
from training.step import jitted, token_losses
from training.text_windows import EVALUATION_BATCH, draw_masks

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
SPANS = tuple(range(1, 9))
SHORT = 16
MASK_RATE = 0.15
WINDOW = 64
MAX_WINDOWS = 1_500
# As many as the book validates with: on its text these are its windows.
MAX_VALIDATION = 3_000
SHAPES = (16, 64)
BOOK_BUNDLE = Path(__file__).parent.parent / "checkpoints" / "masked-lm" / "1"


class Meter:
    """A model's accuracy and loss at masked positions; rows are padded to one of few shapes."""

    def __init__(self, model: MaskedLanguageModel) -> None:
        self.max_size = model.config.max_seq_len
        self.mask_id = model.config.special_id
        self._measure = jitted(model, _measure)

    def __call__(self, tokens: np.ndarray, masked: np.ndarray) -> Figures:
        """Accuracy and mean loss, in nats, of ``tokens`` (B, T) where ``masked`` is True."""
        inputs = np.where(masked, np.int32(self.mask_id), tokens)
        width = tokens.shape[1]
        size = min(shape for shape in (*SHAPES, self.max_size) if width <= shape <= self.max_size)
        hits = loss = 0.0
        for first in range(0, len(tokens), EVALUATION_BATCH):
            part = slice(first, first + EVALUATION_BATCH)
            rows = len(tokens[part])
            pad = ((0, EVALUATION_BATCH - rows), (0, size - width))
            lengths = np.full(EVALUATION_BATCH, width, np.int32)
            hit, lost = self._measure(np.pad(inputs[part], pad), np.pad(tokens[part], pad), lengths)
            hits += np.asarray(hit)[:rows, :width][masked[part]].sum()
            loss += np.asarray(lost)[:rows, :width][masked[part]].sum()
        return {"accuracy": float(hits / masked.sum()), "loss": float(loss / masked.sum())}


def _measure(
    model: MaskedLanguageModel,
    inputs: Int[Array, "B T"],
    targets: Int[Array, "B T"],
    lengths: Int[Array, " B"],
) -> tuple[Bool[Array, "B T"], Float[Array, "B T"]]:
    logits = model(inputs, lengths)
    return jnp.argmax(logits, axis=-1) == targets, token_losses(logits, targets)


def held_out_windows(corpus: Corpus, size: int, count: int = MAX_WINDOWS) -> np.ndarray:
    """At most ``count`` windows (B, size) inside held-out stretches, evenly spread over them."""
    starts = np.concatenate(
        [np.arange(first, end - size + 1) for first, end in corpus.held_out]
        or [np.empty(0, np.int64)]
    )
    chosen = np.linspace(0, len(starts) - 1, min(len(starts), count)).astype(int)
    return windows(corpus.tokens, starts[chosen], size)


def context_figures(model: MaskedLanguageModel, corpus: Corpus, seed: int) -> Figures:
    """Loss by length and by span, with one side alone, and on short windows."""
    meter = Meter(model)
    window = min(WINDOW, meter.max_size)
    return {
        "by_length": {
            str(size): meter(*one_masked(held_out_windows(corpus, size), seed))
            for size in LENGTHS
            if size <= meter.max_size
        },
        "by_span": {
            str(span): meter(*span_masked(held_out_windows(corpus, window), span, seed))
            for span in SPANS
        },
        "by_side": by_side(meter, held_out_windows(corpus, window)),
        "windows_of_16": short_windows(meter, corpus, seed),
    }


def one_masked(tokens: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows with one position masked in each, anywhere."""
    return span_masked(tokens, 1, seed)


def span_masked(tokens: np.ndarray, span: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows with ``span`` adjacent positions masked in each, anywhere."""
    generator = np.random.default_rng((seed, 3))
    starts = generator.integers(0, tokens.shape[1] - span + 1, len(tokens))[:, None]
    positions = np.arange(tokens.shape[1])[None]
    return tokens, (positions >= starts) & (positions < starts + span)


def by_side(meter: Meter, tokens: np.ndarray) -> Figures:
    """The middle character of every window from both sides, from the left and the right alone."""
    middle = tokens.shape[1] // 2
    cuts = {"both": (0, tokens.shape[1]), "left": (0, middle + 1), "right": (middle, None)}
    figures = {}
    for side, (first, end) in cuts.items():
        part = tokens[:, first:end]
        masked = np.zeros(part.shape, bool)
        masked[:, middle - first] = True
        figures[side] = meter(part, masked)
    return figures


def short_windows(meter: Meter, corpus: Corpus, seed: int) -> Figures:
    """Accuracy and loss on windows of 16 characters, 15 % of them masked."""
    tokens = held_out_windows(corpus, SHORT)
    generator = np.random.default_rng((seed, 4))
    return meter(tokens, draw_masks(generator, tokens, MASK_RATE, meter.mask_id)[1])


def book_model_figures(corpus: Corpus, seed: int) -> Figures:
    """What the book's model, version 1 of the bundle, does on the same 16-character windows."""
    try:
        model = load_model(BOOK_BUNDLE).model
    except (CheckpointError, FileNotFoundError):
        return {}
    assert isinstance(model, MaskedLanguageModel)
    return {"windows_of_16_book_model": short_windows(Meter(model), corpus, seed)}

"""Whether latents find what belongs together: the other half of a passage, the same text again.

A text stands for its latents' mean, and two texts are as close as the cosine between those.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from models.perceiver import PerceiverAutoencoder
from training.corpus import windows
from training.recipe import Figures
from training.step import jitted

PASSAGE = 256
OFFSET = 16
ROWS = 125


def most_passages(num_characters: int) -> int:
    """How many passages a text has room for."""
    return max(num_characters - OFFSET, 0) // PASSAGE


def retrieval_figures(
    model: PerceiverAutoencoder, tokens: np.ndarray, num_passages: int
) -> Figures:
    """Shares of passages whose other half, and whose shifted copy, is the nearest of all.

    The passages are spread evenly over the text and do not overlap; the shifted copy begins 16
    characters later and shares the other 240.

    Raises:
        ValueError: if the text is too short for that.
    """
    if num_passages > most_passages(tokens.size):
        raise ValueError(
            f"expected at least {num_passages * PASSAGE + OFFSET} characters for {num_passages} "
            f"passages, got {tokens.size}"
        )
    starts = np.arange(num_passages) * ((tokens.size - OFFSET) // num_passages)
    half = PASSAGE // 2
    firsts, seconds, wholes, shifted = (
        pooled(model, windows(tokens, starts + first, size))
        for first, size in ((0, half), (half, half), (0, PASSAGE), (OFFSET, PASSAGE))
    )
    return {
        "num_passages": num_passages,
        "passage_length": PASSAGE,
        "offset": OFFSET,
        "other_half_first": found_first(firsts, seconds),
        "same_text_at_an_offset_first": found_first(wholes, shifted),
        "by_chance": 1 / num_passages,
    }


def pooled(model: PerceiverAutoencoder, tokens: np.ndarray) -> np.ndarray:
    """The mean latent of every text (B, S), of length 1."""
    encode = jitted(model, _mean_latent)
    parts = []
    for first in range(0, len(tokens), ROWS):
        part = tokens[first : first + ROWS]
        parts.append(np.asarray(encode(part, np.full(len(part), part.shape[1], np.int32))))
    means = np.concatenate(parts)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def found_first(queries: np.ndarray, others: np.ndarray) -> float:
    """The share of ``queries`` (B, D) that are closest to the one of ``others`` in their row."""
    return float(((queries @ others.T).argmax(axis=1) == np.arange(len(queries))).mean())


def _mean_latent(
    model: PerceiverAutoencoder, tokens: Int[Array, "B S"], lengths: Int[Array, " B"]
) -> Float[Array, "B D"]:
    return jnp.mean(model.encode(tokens, lengths).latents, axis=1)

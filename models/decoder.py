"""Wiring 3: a causal decoder, with generation that stays on the device.

Axis letters: B batch, T position, N heads, D embed_dim, V vocab.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention"; nucleus sampling
from Holtzman et al. (2019), arXiv:1904.09751, section 3.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from models.attention import KeyValues
from models.blocks import Stacked, TransformerStack
from models.masks import causal_mask, combine_masks, padding_mask


class Sampling(NamedTuple):
    """How each row draws its tokens.

    ``temperature`` is at least 0, where 0 takes the likeliest token; ``top_p`` in (0, 1] keeps the
    smallest set of tokens with that much probability; ``seed`` fixes the row's draws whatever
    else is in the batch.
    """

    temperature: Float[Array, " B"]
    top_p: Float[Array, " B"]
    seed: UInt32[Array, " B"]


class Generated(NamedTuple):
    """Generated continuations.

    ``log_probs`` are those of the model itself, before temperature and ``top_p``, over the whole
    vocabulary at each step (natural logarithms).
    """

    tokens: Int[Array, "B T"]
    log_probs: Float[Array, "B T V"]


class _Step(NamedTuple):
    """What one step of generation hands to the next; ``last`` is the last token's state."""

    num_done: Int[Array, ""]
    last: Float[Array, "B 1 D"]
    caches: tuple[KeyValues, ...]
    generated: Generated


class CausalLanguageModel(TransformerStack):
    """Predicts every token from those before it; ``special_id`` is ``<bos>``, which starts a text.

    Behind ``<bos>``, ``max_seq_len`` positions are read and as many predicted.
    """

    def read(self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Stacked:
        """The states of tokens that see only those before them, with what to continue from.

        Positions at or past a row's length are padding.
        """
        size = tokens.shape[1]
        mask = combine_masks(causal_mask(size), padding_mask(lengths, size))
        return self.run(tokens, jnp.arange(size)[None], mask)

    def __call__(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
    ) -> Float[Array, "B T V"]:
        """Logits for the token after every position."""
        return self.head(self.read(tokens, lengths).states)

    def generate(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        max_new_tokens: Int[Array, " B"],
        sampling: Sampling,
    ) -> Generated:
        """Continues every row from its prompt until the longest request is met.

        A prompt of ``lengths`` tokens, ``<bos>`` included, leaves room for
        ``max_seq_len + 1 - lengths`` new ones; what a row draws past its own ``max_new_tokens``
        or room means nothing.
        """
        size = self.config.max_seq_len
        prompt = self.read(tokens, lengths)
        caches = tuple(_widen(key_values, size) for key_values in prompt.key_values)
        last = jnp.take_along_axis(prompt.states, (lengths - 1)[:, None, None], axis=1)
        shape = (tokens.shape[0], size)
        generated = Generated(
            tokens=jnp.zeros(shape, jnp.int32),
            log_probs=jnp.zeros((*shape, self.config.vocab_size), jnp.float32),
        )
        steps = jnp.max(jnp.minimum(max_new_tokens, size + 1 - lengths))

        def advance(step: _Step) -> _Step:
            logits = self.head(step.last[:, 0]).astype(jnp.float32)
            chosen = sample(logits, step.num_done, sampling)
            log_probs = jax.nn.log_softmax(logits, axis=-1)
            written = Generated(
                tokens=step.generated.tokens.at[:, step.num_done].set(chosen),
                log_probs=step.generated.log_probs.at[:, step.num_done].set(log_probs),
            )
            positions = jnp.minimum(lengths + step.num_done, size - 1)
            mask = padding_mask(positions + 1, size)
            following = self.run(chosen[:, None], positions[:, None], mask, step.caches)
            return _Step(step.num_done + 1, following.states, following.key_values, written)

        start = _Step(jnp.array(0, jnp.int32), last, caches, generated)
        return jax.lax.while_loop(lambda step: step.num_done < steps, advance, start).generated


def _widen(key_values: KeyValues, size: int) -> KeyValues:
    missing = size - key_values.keys.shape[1]
    return KeyValues(
        *(jnp.pad(part, ((0, 0), (0, missing), (0, 0), (0, 0))) for part in key_values)
    )


def sample(
    logits: Float[Array, "B V"], index: Int[Array, ""], sampling: Sampling
) -> Int[Array, " B"]:
    """One token per row, drawn as ``sampling`` says; ``index`` counts the row's draws."""
    warm = sampling.temperature > 0
    scaled = logits / jnp.where(warm, sampling.temperature, 1.0)[:, None]
    kept = jnp.where(_nucleus(scaled, sampling.top_p), scaled, -jnp.inf)

    def draw(seed: UInt32[Array, ""], row: Float[Array, " V"]) -> Int[Array, ""]:
        return jax.random.categorical(jax.random.fold_in(jax.random.key(seed), index), row)

    drawn = jax.vmap(draw)(sampling.seed, kept)
    return jnp.where(warm, drawn, jnp.argmax(logits, axis=-1)).astype(jnp.int32)


def _nucleus(logits: Float[Array, "B V"], top_p: Float[Array, " B"]) -> Bool[Array, "B V"]:
    """True at the smallest set of likeliest tokens that holds ``top_p`` of the probability."""
    probs = jax.nn.softmax(logits, axis=-1)
    order = jnp.argsort(probs, axis=-1, descending=True)
    ranked = jnp.take_along_axis(probs, order, axis=-1)
    before = jnp.cumsum(ranked, axis=-1) - ranked
    ranks = jnp.argsort(order, axis=-1)
    return jnp.take_along_axis(before < top_p[:, None], ranks, axis=-1)

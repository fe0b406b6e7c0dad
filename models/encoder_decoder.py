"""Wiring 2: an encoder-decoder, with greedy decoding that stays on the device.

Axis letters: B batch, T target position, S source position, N heads, D embed_dim, V vocab,
L decoder layers.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention"; Vaswani et al.
(2017), arXiv:1706.03762.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues, empty_cache, write_cache
from models.blocks import BlockConfig, DecoderBlock, TransformerBlock, embedding, require_positive
from models.masks import causal_mask, combine_masks, padding_mask


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig:
    """The size of an encoder-decoder; ``bos_id`` starts every target.

    ``max_len`` bounds source and target alike. With ``eos_id`` None, the target is as long as the
    source and nothing marks its end.

    Raises:
        ValueError: if a size is not positive, ``num_heads`` does not divide ``embed_dim`` or a
            special token lies outside the vocabulary.
    """

    vocab_size: int
    bos_id: int
    eos_id: int | None = None
    embed_dim: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    max_len: int

    def __post_init__(self) -> None:
        require_positive(
            vocab_size=self.vocab_size,
            num_encoder_layers=self.num_encoder_layers,
            num_decoder_layers=self.num_decoder_layers,
            max_len=self.max_len,
        )
        _ = self.block
        for name, token in (("bos_id", self.bos_id), ("eos_id", self.eos_id)):
            if token is not None and not 0 <= token < self.vocab_size:
                raise ValueError(f"{name}: expected 0..{self.vocab_size - 1}, got {token}")

    @property
    def block(self) -> BlockConfig:
        """The size of every block."""
        return BlockConfig(embed_dim=self.embed_dim, num_heads=self.num_heads)

    @classmethod
    def book(cls, vocab_size: int, bos_id: int) -> "EncoderDecoderConfig":
        """The published recipe: D 128, 4 heads, one block on either side, 12 positions."""
        return cls(
            vocab_size=vocab_size,
            bos_id=bos_id,
            embed_dim=128,
            num_heads=4,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_len=12,
        )

    @classmethod
    def debug(cls, vocab_size: int, bos_id: int) -> "EncoderDecoderConfig":
        """Small enough to train in seconds."""
        return cls(
            vocab_size=vocab_size,
            bos_id=bos_id,
            embed_dim=16,
            num_heads=2,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_len=12,
        )


class Decoded(NamedTuple):
    """Greedily decoded targets.

    ``log_probs`` are natural logarithms, at most 0; ``attention`` is the cross-attention of every
    decoder layer. At and past a row's length, tokens are 0 and the rest means nothing.
    """

    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    log_probs: Float[Array, "B T"]
    attention: Float[Array, "B L N T S"]


class _Step(NamedTuple):
    """What one step of decoding hands to the next."""

    num_done: Int[Array, ""]
    last: Int[Array, " B"]
    done: Bool[Array, " B"]
    caches: tuple[KeyValues, ...]
    decoded: Decoded


class EncoderDecoder(nnx.Module):
    """An encoder over the source, and a causal decoder that cross-attends into it."""

    def __init__(self, config: EncoderDecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        d, v = config.embed_dim, config.vocab_size
        self.source_embedding = embedding(v, d, rngs=rngs)
        self.source_positions = embedding(config.max_len, d, rngs=rngs)
        self.encoder_blocks = nnx.List(
            [TransformerBlock(config.block, rngs=rngs) for _ in range(config.num_encoder_layers)]
        )
        self.encoder_norm = nnx.RMSNorm(d, rngs=rngs)
        self.target_embedding = embedding(v, d, rngs=rngs)
        self.target_positions = embedding(config.max_len, d, rngs=rngs)
        self.decoder_blocks = nnx.List(
            [DecoderBlock(config.block, rngs=rngs) for _ in range(config.num_decoder_layers)]
        )
        self.decoder_norm = nnx.RMSNorm(d, rngs=rngs)
        self.head = nnx.Linear(d, v, use_bias=False, rngs=rngs)

    def encode(
        self, source: Int[Array, "B S"], source_mask: Bool[Array, "B 1 S"]
    ) -> tuple[KeyValues, ...]:
        """The encoded source as each decoder block will read it."""
        positions = jnp.arange(source.shape[1])
        x = self.source_embedding(source) + self.source_positions(positions)[None]
        for block in self.encoder_blocks:
            x = block(x, block.project(x), source_mask).x
        x = self.encoder_norm(x)
        return tuple(block.cross_attention.project(x) for block in self.decoder_blocks)

    def __call__(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        target_inputs: Int[Array, "B T"],
        target_lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B T V"], Float[Array, "B L N T S"]]:
        """Next-token logits for known targets, and the cross-attention of every decoder layer.

        ``target_inputs`` is the target shifted right behind ``bos_id``.
        """
        size = target_inputs.shape[1]
        source_mask = padding_mask(source_lengths, source.shape[1])
        target_mask = combine_masks(causal_mask(size), padding_mask(target_lengths, size))
        memories = self.encode(source, source_mask)
        positions = jnp.arange(size)
        x = self.target_embedding(target_inputs) + self.target_positions(positions)[None]
        layers = []
        for block, memory in zip(self.decoder_blocks, memories, strict=True):
            x, weights = block(x, block.project(x), target_mask, memory, source_mask)
            layers.append(weights)
        return self.head(self.decoder_norm(x)), jnp.stack(layers, axis=1)

    def decode(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        max_new_tokens: Int[Array, " B"],
    ) -> Decoded:
        """The most likely token at every step, until each row ends.

        The source is encoded once; a row ends at ``eos_id``, which is not part of the output, or
        after ``max_new_tokens``, at most S and ``max_len``. The loop ends with its last row.
        """
        source_mask = padding_mask(source_lengths, source.shape[1])
        memories = self.encode(source, source_mask)
        limits = jnp.minimum(max_new_tokens, source.shape[1])

        def advance(step: _Step) -> _Step:
            logits, weights, caches = self._next(
                step.last, step.num_done, step.caches, memories, source_mask
            )
            return self._record(step, logits, weights, caches, limits)

        def running(step: _Step) -> Bool[Array, ""]:
            return (step.num_done < source.shape[1]) & ~jnp.all(step.done)

        return jax.lax.while_loop(running, advance, self._start(source, limits)).decoded

    def _start(self, source: Int[Array, "B S"], limits: Int[Array, " B"]) -> _Step:
        batch, size = source.shape
        config = self.config
        dtype = self.head.kernel.dtype
        cache = empty_cache(batch, size, config.num_heads, config.block.head_dim, dtype)
        shape = (batch, config.num_decoder_layers, config.num_heads, size, size)
        decoded = Decoded(
            tokens=jnp.zeros((batch, size), jnp.int32),
            lengths=jnp.zeros(batch, jnp.int32),
            log_probs=jnp.zeros((batch, size), jnp.float32),
            attention=jnp.zeros(shape, dtype),
        )
        last = jnp.full(batch, config.bos_id, jnp.int32)
        caches = (cache,) * config.num_decoder_layers
        return _Step(jnp.array(0, jnp.int32), last, limits <= 0, caches, decoded)

    def _next(
        self,
        last: Int[Array, " B"],
        index: Int[Array, ""],
        caches: tuple[KeyValues, ...],
        memories: tuple[KeyValues, ...],
        source_mask: Bool[Array, "B 1 S"],
    ) -> tuple[Float[Array, "B V"], Float[Array, "B L N S"], tuple[KeyValues, ...]]:
        """Logits for the token after ``last``, which stands at ``index``."""
        positions = jnp.full(last.shape, index)
        x = (self.target_embedding(last) + self.target_positions(positions))[:, None]
        mask = padding_mask(positions + 1, caches[0].keys.shape[1])
        written, layers = [], []
        for block, cache, memory in zip(self.decoder_blocks, caches, memories, strict=True):
            written.append(write_cache(cache, block.project(x), positions))
            x, weights = block(x, written[-1], mask, memory, source_mask)
            layers.append(weights[:, :, 0])
        logits = self.head(self.decoder_norm(x))[:, 0].astype(jnp.float32)
        return logits, jnp.stack(layers, axis=1), tuple(written)

    def _record(
        self,
        step: _Step,
        logits: Float[Array, "B V"],
        weights: Float[Array, "B L N S"],
        caches: tuple[KeyValues, ...],
        limits: Int[Array, " B"],
    ) -> _Step:
        """The step after the likeliest token of every running row has been written down."""
        logits = logits.at[:, self.config.bos_id].set(-jnp.inf)
        chosen = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        log_probs = jnp.max(jax.nn.log_softmax(logits, axis=-1), axis=-1)
        ended = jnp.zeros_like(step.done)
        if self.config.eos_id is not None:
            ended = chosen == self.config.eos_id
        done = step.done | ended
        kept = (~done).astype(jnp.int32)
        decoded = Decoded(
            tokens=step.decoded.tokens.at[:, step.num_done].set(chosen * kept),
            lengths=step.decoded.lengths + kept,
            log_probs=step.decoded.log_probs.at[:, step.num_done].set(log_probs),
            attention=step.decoded.attention.at[:, :, :, step.num_done].set(weights),
        )
        index = step.num_done + 1
        return _Step(index, chosen, done | (index >= limits), caches, decoded)

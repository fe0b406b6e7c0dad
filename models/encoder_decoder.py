"""Wiring 2: an encoder-decoder. models/decoding.py decodes with it.

Axis letters: B batch, T target position, S source position, N heads, D embed_dim, V vocab,
L decoder layers.
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention"; Vaswani et al.
(2017), arXiv:1706.03762.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from models.attention import KeyValues, empty_cache, write_cache
from models.blocks import BlockConfig, DecoderBlock, TransformerBlock, embedding, require_positive
from models.masks import causal_mask, combine_masks, padding_mask
from models.products import linear

SOURCE_ORDERS = ("start", "end")


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig:
    """The size of an encoder-decoder; ``bos_id`` starts every target, ``eos_id`` ends it.

    With ``eos_id`` None, the target is as long as the source and nothing marks its end.
    ``source_order`` says from where source positions are counted: "start", or "end", so that the
    last symbol of every source has position 0, whatever its length.

    Raises:
        ValueError: if a size is not positive, ``num_heads`` does not divide ``embed_dim``, a
            special token lies outside the vocabulary or the order is none that exists.
    """

    source_vocab_size: int
    target_vocab_size: int
    bos_id: int
    eos_id: int | None = None
    embed_dim: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    max_source_len: int
    max_target_len: int
    source_order: str = "start"

    def __post_init__(self) -> None:
        require_positive(
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.target_vocab_size,
            num_encoder_layers=self.num_encoder_layers,
            num_decoder_layers=self.num_decoder_layers,
            max_source_len=self.max_source_len,
            max_target_len=self.max_target_len,
        )
        _ = self.block
        for name, token in (("bos_id", self.bos_id), ("eos_id", self.eos_id)):
            if token is not None and not 0 <= token < self.target_vocab_size:
                raise ValueError(f"{name}: expected 0..{self.target_vocab_size - 1}, got {token}")
        if self.source_order not in SOURCE_ORDERS:
            raise ValueError(
                f"source_order: expected one of {SOURCE_ORDERS}, got {self.source_order!r}"
            )

    @property
    def block(self) -> BlockConfig:
        """The size of every block."""
        return BlockConfig(embed_dim=self.embed_dim, num_heads=self.num_heads)

    def max_new_tokens(self, source_size: int) -> int:
        """The most tokens that a target of a source of at most ``source_size`` symbols can have."""
        return min(source_size, self.max_target_len) if self.eos_id is None else self.max_target_len

    def positions_in_source(self, lengths: Int[Array, " B"], size: int) -> Int[Array, "#B S"]:
        """The position of every symbol of sources padded to ``size``."""
        positions = jnp.arange(size)[None]
        if self.source_order == "end":
            positions = jnp.maximum(lengths[:, None] - 1 - positions, 0)
        return positions

    def empty_caches(self, batch: int, target_size: int) -> tuple[KeyValues, ...]:
        """A key/value cache for every decoder layer with room for ``target_size`` tokens."""
        cache = empty_cache(batch, target_size, self.block.num_heads, self.block.head_dim)
        return (cache,) * self.num_decoder_layers

    @classmethod
    def book(cls, vocab_size: int, bos_id: int) -> "EncoderDecoderConfig":
        """The published recipe: D 128, 4 heads, one block on either side, 12 positions."""
        return cls.reading_alike(vocab_size, bos_id, embed_dim=128, num_heads=4, max_len=12)

    @classmethod
    def debug(cls, vocab_size: int, bos_id: int) -> "EncoderDecoderConfig":
        """Small enough to train in seconds."""
        return cls.reading_alike(vocab_size, bos_id, embed_dim=16, num_heads=2, max_len=12)

    @classmethod
    def reading_alike(
        cls,
        vocab_size: int,
        bos_id: int,
        *,
        embed_dim: int,
        num_heads: int,
        max_len: int,
        source_order: str = "start",
    ) -> "EncoderDecoderConfig":
        """One block on either side; targets with the vocabulary and the length of sources."""
        return cls(
            source_vocab_size=vocab_size,
            target_vocab_size=vocab_size,
            bos_id=bos_id,
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_source_len=max_len,
            max_target_len=max_len,
            source_order=source_order,
        )


class EncoderDecoder(nnx.Module):
    """An encoder over the source, and a causal decoder that cross-attends into it."""

    def __init__(self, config: EncoderDecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        d, v = config.embed_dim, config.target_vocab_size
        self.source_embedding = embedding(config.source_vocab_size, d, rngs=rngs)
        self.source_positions = embedding(config.max_source_len, d, rngs=rngs)
        self.encoder_blocks = nnx.List(
            [TransformerBlock(config.block, rngs=rngs) for _ in range(config.num_encoder_layers)]
        )
        self.encoder_norm = nnx.RMSNorm(d, rngs=rngs)
        self.target_embedding = embedding(v, d, rngs=rngs)
        self.target_positions = embedding(config.max_target_len, d, rngs=rngs)
        self.decoder_blocks = nnx.List(
            [DecoderBlock(config.block, rngs=rngs) for _ in range(config.num_decoder_layers)]
        )
        self.decoder_norm = nnx.RMSNorm(d, rngs=rngs)
        self.head = linear(d, v, rngs=rngs)

    def encode(self, source: Int[Array, "B S"], lengths: Int[Array, " B"]) -> tuple[KeyValues, ...]:
        """The encoded source as each decoder block will read it."""
        size = source.shape[1]
        mask = padding_mask(lengths, size)
        positions = self.config.positions_in_source(lengths, size)
        x = self.source_embedding(source) + self.source_positions(positions)
        for block in self.encoder_blocks:
            x = block(x, block.project(x), mask).x
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
        memories = self.encode(source, source_lengths)
        return self.read_target(memories, source_lengths, target_inputs, target_lengths)

    def read_target(
        self,
        memories: tuple[KeyValues, ...],
        source_lengths: Int[Array, " B"],
        target_inputs: Int[Array, "B T"],
        target_lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B T V"], Float[Array, "B L N T S"]]:
        """What ``__call__`` gives, for a source that is encoded already."""
        size = target_inputs.shape[1]
        source_mask = padding_mask(source_lengths, memories[0].keys.shape[2])
        target_mask = combine_masks(causal_mask(size), padding_mask(target_lengths, size))
        x = self.target_embedding(target_inputs) + self.target_positions(jnp.arange(size))[None]
        layers = []
        for block, memory in zip(self.decoder_blocks, memories, strict=True):
            x, weights = block(x, block.project(x), target_mask, memory, source_mask)
            layers.append(weights)
        return self.head(self.decoder_norm(x)), jnp.stack(layers, axis=1)

    def next_logits(
        self,
        last: Int[Array, " B"],
        positions: Int[Array, " B"],
        caches: tuple[KeyValues, ...],
        memories: tuple[KeyValues, ...],
        source_lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B V"], tuple[KeyValues, ...]]:
        """Logits for the token after ``last``, which stands at ``positions``, and the new caches.

        ``bos_id`` is never the next token: its logit is minus infinity.
        """
        x = (self.target_embedding(last) + self.target_positions(positions))[:, None]
        mask = padding_mask(positions + 1, caches[0].keys.shape[2])
        source_mask = padding_mask(source_lengths, memories[0].keys.shape[2])
        written = []
        for block, cache, memory in zip(self.decoder_blocks, caches, memories, strict=True):
            written.append(write_cache(cache, block.project(x), positions))
            x = block(x, written[-1], mask, memory, source_mask).x
        logits = self.head(self.decoder_norm(x))[:, 0]
        return logits.at[:, self.config.bos_id].set(-jnp.inf), tuple(written)

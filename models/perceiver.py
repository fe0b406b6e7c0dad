"""Learned queries: a Perceiver reads N vectors into M latents at a cost of O(MN).

The latents are also read back: output queries made from position features alone cross-attend
into them and name the character at every position, which shows what the summary kept.

Where attention starts out decides whether anything is learned: with random queries every latent
averages the whole input, and reads stay where they were first learned. So positions are measured
relative to the length as well; every latent has an address on that scale, the heads of a latent
share its unit out, and queries are scaled up (docs/decisions/0006-where-the-latents-look.md).

Axis letters: B batch, T output position, S input position, M latent, N heads, D embed_dim,
V vocab, W wavelength.
Source: Jaegle et al. (2021), arXiv:2103.03206, section 3; output queries from Perceiver IO, Jaegle
et al. (2021), arXiv:2107.14795, section 3.2; sizes from Dive into Deep Learning (2026).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from models.attention import MultiHeadAttention
from models.blocks import BlockConfig, FeedForward, TransformerBlock, embedding, require_positive
from models.masks import padding_mask
from models.products import linear
from models.sines import sine_and_cosine

SHORTEST_RELATIVE = 0.125


@dataclass(frozen=True, kw_only=True, slots=True)
class PerceiverConfig:
    """The size of a Perceiver over text; the mask has the token id ``vocab_size``.

    ``query_scale`` sharpens both cross-attentions from the start.

    Raises:
        ValueError: if a size is not positive, ``num_heads`` does not divide ``embed_dim``, or
            ``embed_dim`` is not a multiple of 4, which position features need.
    """

    vocab_size: int
    num_latents: int
    embed_dim: int
    num_heads: int
    num_layers: int
    max_input_len: int
    query_scale: float = 3.0

    def __post_init__(self) -> None:
        require_positive(
            vocab_size=self.vocab_size,
            num_latents=self.num_latents,
            num_layers=self.num_layers,
            max_input_len=self.max_input_len,
        )
        _ = self.block
        if self.embed_dim % 4:
            raise ValueError(f"embed_dim: expected a multiple of 4, got {self.embed_dim}")

    @property
    def block(self) -> BlockConfig:
        """The size of every block."""
        return BlockConfig(embed_dim=self.embed_dim, num_heads=self.num_heads)

    @property
    def mask_id(self) -> int:
        """Token id of the mask, which hides a character on the way in."""
        return self.vocab_size

    @classmethod
    def book(cls, vocab_size: int) -> "PerceiverConfig":
        """The published sizes: M 64, D 256, 4 heads, 2 blocks; any length to 8,192."""
        return cls(
            vocab_size=vocab_size,
            num_latents=64,
            embed_dim=256,
            num_heads=4,
            num_layers=2,
            max_input_len=8192,
        )

    @classmethod
    def debug(cls, vocab_size: int) -> "PerceiverConfig":
        """Small enough to train in seconds."""
        return cls(
            vocab_size=vocab_size,
            num_latents=8,
            embed_dim=16,
            num_heads=2,
            num_layers=1,
            max_input_len=8192,
        )


def wavelengths(config: PerceiverConfig) -> tuple[Float[np.ndarray, " W"], ...]:
    """Wavelengths of the absolute features, in characters, and of the relative ones, in latents.

    Each set is spaced evenly in the logarithm, from one that tells neighbours apart to one that
    is longer than any input.
    """
    count = config.embed_dim // 4
    return (
        np.geomspace(2.0, 2.0 * config.max_input_len, count, dtype=np.float32),
        np.geomspace(SHORTEST_RELATIVE, 2.0 * config.num_latents, count, dtype=np.float32),
    )


def position_features(
    positions: Float[Array, "#B T"], lengths: Int[Array, " B"], config: PerceiverConfig
) -> Float[Array, "B T D"]:
    """Sines and cosines of where ``positions`` lie: in characters, and relative to the length.

    The relative coordinate runs from 0 to ``num_latents`` over an input of any length, so one
    latent is one unit of it.
    Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.5, with other wavelengths.
    """
    length = jnp.maximum(lengths, 1).astype(jnp.float32)[:, None]
    absolute = jnp.broadcast_to(positions, (lengths.shape[0], positions.shape[1]))
    relative = (absolute + 0.5) * config.num_latents / length
    parts = []
    for coordinate, lambdas in zip((absolute, relative), wavelengths(config), strict=True):
        parts += sine_and_cosine(2 * math.pi * coordinate[:, :, None] / lambdas[None, None])
    return jnp.concatenate(parts, axis=-1)


def latent_addresses(lengths: Int[Array, " B"], config: PerceiverConfig) -> Float[Array, "B M D"]:
    """The position features of where the latents sit: evenly over the input."""
    stride = lengths.astype(jnp.float32)[:, None] / config.num_latents
    centres = (_indices(config.num_latents) + 0.5) * stride - 0.5
    return position_features(centres, lengths, config)


class Summary(NamedTuple):
    """What a Perceiver makes of its input; ``weights`` are those of the reading cross-attention."""

    latents: Float[Array, "B M D"]
    weights: Float[Array, "B N M S"]


class Reconstruction(NamedTuple):
    """A summary, and what it alone gives back: at every position the likeliest symbol.

    ``log_probs`` are the natural logarithms of their probabilities.
    """

    latents: Float[Array, "B M D"]
    tokens: Int[Array, "B S"]
    log_probs: Float[Array, "B S"]


class PerceiverEncoder(nnx.Module):
    """Learned latents that cross-attend into the input once, then attend to each other."""

    def __init__(self, config: PerceiverConfig, *, rngs: nnx.Rngs) -> None:
        shape = (config.num_latents, config.embed_dim)
        init = nnx.initializers.normal(stddev=0.02)
        self.latents = nnx.Param(init(rngs.params(), shape, jnp.float32))
        self.query_norm = nnx.RMSNorm(config.embed_dim, rngs=rngs)
        self.cross_attention = cross_attention(config, rngs=rngs)
        spread_heads(self.cross_attention, config)
        self.blocks = nnx.List(
            [TransformerBlock(config.block, rngs=rngs) for _ in range(config.num_layers)]
        )
        self.final_norm = nnx.RMSNorm(config.embed_dim, rngs=rngs)

    def __call__(
        self,
        inputs: Float[Array, "B S D"],
        mask: Bool[Array, "B 1 S"],
        addresses: Float[Array, "#B M D"] | None = None,
    ) -> Summary:
        """Reads the ``inputs`` where ``mask`` is True into the latents.

        ``addresses`` says where in the input each latent sits, in the features by which the inputs
        tell their own positions; without them, the latents are all that the queries know.
        """
        latents = self.latents[...][None]
        if addresses is not None:
            latents = latents + addresses
        x = jnp.broadcast_to(latents, (inputs.shape[0], *latents.shape[1:]))
        memory = self.cross_attention.project(inputs)
        read, weights = self.cross_attention.attend(self.query_norm(x), memory, mask)
        x = x + read
        everything = jnp.ones((1, 1, x.shape[1]), dtype=bool)
        for block in self.blocks:
            x = block(x, block.project(x), everything).x
        return Summary(self.final_norm(x), weights)


def cross_attention(config: PerceiverConfig, *, rngs: nnx.Rngs) -> MultiHeadAttention:
    """Cross-attention whose queries and keys start from one matrix.

    A query then scores highest where the address of a key is its own, from the first step on.
    """
    attention = MultiHeadAttention(
        config.embed_dim, config.num_heads, query_scale=config.query_scale, rngs=rngs
    )
    attention.key_proj.kernel[...] = jnp.copy(attention.query_proj.kernel[...])
    return attention


def spread_heads(attention: MultiHeadAttention, config: PerceiverConfig) -> None:
    """Shifts where each head starts to look, so that the heads of a latent share its unit out.

    Features of a shifted coordinate are a rotation of each sine and cosine by the shift, so
    shifting what a head's queries ask for is a rotation of rows of its query matrix.
    """
    heads = np.arange(config.num_heads)
    shifts = (heads - (config.num_heads - 1) / 2) / config.num_heads
    angles = 2 * math.pi * shifts[None, :] / wavelengths(config)[1][:, None]
    cos, sin = (jnp.asarray(f(angles), jnp.float32)[:, :, None] for f in (np.cos, np.sin))
    kernel = attention.query_proj.kernel[...]
    absolute, sines, cosines = jnp.split(kernel, np.array([2, 3]) * config.embed_dim // 4)
    rotated = (absolute, cos * sines - sin * cosines, sin * sines + cos * cosines)
    attention.query_proj.kernel[...] = jnp.concatenate(rotated)


class ReconstructionHead(nnx.Module):
    """Output queries that cross-attend out of the latents and name a symbol each."""

    def __init__(self, config: PerceiverConfig, *, rngs: nnx.Rngs) -> None:
        d = config.embed_dim
        self.query_norm = nnx.RMSNorm(d, rngs=rngs)
        self.cross_attention = cross_attention(config, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(d, rngs=rngs)
        self.mlp = FeedForward(config.block, rngs=rngs)
        self.final_norm = nnx.RMSNorm(d, rngs=rngs)
        self.head = linear(d, config.vocab_size, rngs=rngs)

    def __call__(
        self, queries: Float[Array, "B T D"], latents: Float[Array, "B M D"]
    ) -> Float[Array, "B T V"]:
        """Logits over the symbols for every query."""
        everything = jnp.ones((1, 1, latents.shape[1]), dtype=bool)
        memory = self.cross_attention.project(latents)
        x = queries + self.cross_attention.attend(self.query_norm(queries), memory, everything)[0]
        x = x + self.mlp(self.mlp_norm(x))
        return self.head(self.final_norm(x))


class PerceiverAutoencoder(nnx.Module):
    """Text through the bottleneck and back: a Perceiver and its reconstruction head."""

    def __init__(self, config: PerceiverConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.token_embedding = embedding(config.vocab_size + 1, config.embed_dim, rngs=rngs)
        self.encoder = PerceiverEncoder(config, rngs=rngs)
        self.reconstruction = ReconstructionHead(config, rngs=rngs)

    def encode(self, tokens: Int[Array, "B S"], lengths: Int[Array, " B"]) -> Summary:
        """The summary of text; positions at or past a row's length are padding."""
        # Embeddings are drawn small; scaled as in Vaswani et al. (2017), section 3.4, they weigh
        # as much as the position features.
        vectors = self.token_embedding(tokens) * math.sqrt(self.config.embed_dim)
        return self.encode_vectors(vectors, lengths)

    def encode_vectors(self, vectors: Float[Array, "B S D"], lengths: Int[Array, " B"]) -> Summary:
        """The summary of ready-made vectors, which take the place of scaled embeddings."""
        config, size = self.config, vectors.shape[1]
        inputs = vectors + position_features(_indices(size), lengths, config)
        return self.encoder(inputs, padding_mask(lengths, size), latent_addresses(lengths, config))

    def __call__(
        self, tokens: Int[Array, "B S"], lengths: Int[Array, " B"]
    ) -> Float[Array, "B S V"]:
        """Logits for the symbol at every position, read back from the latents alone."""
        return self._read_back(self.encode(tokens, lengths).latents, lengths, tokens.shape[1])

    def reconstruct(self, tokens: Int[Array, "B S"], lengths: Int[Array, " B"]) -> Reconstruction:
        """The summary of text, and the text that is read back from it."""
        latents = self.encode(tokens, lengths).latents
        logits = self._read_back(latents, lengths, tokens.shape[1])
        log_probs = nnx.log_softmax(logits, axis=-1)
        return Reconstruction(latents, jnp.argmax(logits, axis=-1), jnp.max(log_probs, axis=-1))

    def _read_back(
        self, latents: Float[Array, "B M D"], lengths: Int[Array, " B"], size: int
    ) -> Float[Array, "B S V"]:
        return self.reconstruction(position_features(_indices(size), lengths, self.config), latents)


def _indices(size: int) -> Float[Array, "1 T"]:
    return jnp.arange(size, dtype=jnp.float32)[None]

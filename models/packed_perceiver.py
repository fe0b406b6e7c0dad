"""A Perceiver's parameters laid out for speed, and passes over them.

Blocks are those of models/packed_blocks.py; how the inputs are read is in models/packed_reading.py.
The text is read back a tile at a time too.

Axis letters: B batch, S input position, M latent, N heads, D embed_dim, V vocab.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from models.attention import KeyValues
from models.packed_blocks import (
    Matrix,
    PackedAttention,
    PackedBlock,
    PackedFeedForward,
    Shape,
    Vector,
    Wide,
    attend,
    fed_forward,
    key_values,
    norm,
    numbers,
    pack_attention,
    pack_block,
    pack_feed_forward,
    place_like,
    split_heads,
    through,
)
from models.packed_reading import (
    TILE,
    PackedReading,
    Reading,
    over_tiles,
    pack_reading,
    read,
    reading_weights,
)
from models.perceiver import (
    PerceiverAutoencoder,
    PerceiverConfig,
    Reconstruction,
    latent_addresses,
    position_features,
)
from models.products import times

# Rows of a batch share the tile of what is read back, and this is the least for each.
SHORTEST_TILE = 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedVectors(Wide):
    """What is read, what reads it at first, and the scale of what comes out.

    Embeddings are scaled already.
    """

    token_embedding: Matrix
    latents: Matrix
    final_scale: Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedPerceiver:
    """A Perceiver and its reconstruction head."""

    vectors: PackedVectors
    reading: PackedReading
    blocks: tuple[PackedBlock, ...]
    reading_back: PackedAttention
    mlp: PackedFeedForward
    head: Matrix
    config: PerceiverConfig
    shape: Shape


_META = ["config", "shape"]
jax.tree_util.register_dataclass(
    PackedPerceiver,
    data_fields=[name for name in PackedPerceiver.__dataclass_fields__ if name not in _META],
    meta_fields=_META,
)


def pack(model: PerceiverAutoencoder) -> PackedPerceiver:
    """The parameters of ``model``, packed, where they were."""
    encoder, back, config = model.encoder, model.reconstruction, model.config
    table = numbers(model.token_embedding.embedding)
    shape = Shape(num_heads=config.num_heads, epsilon=encoder.final_norm.epsilon)
    packed = PackedPerceiver(
        vectors=PackedVectors(
            token_embedding=table * np.float32(math.sqrt(config.embed_dim)),
            latents=numbers(encoder.latents),
            final_scale=numbers(encoder.final_norm.scale),
        ),
        reading=pack_reading(encoder.cross_attention, encoder.query_norm, shape),
        blocks=tuple(map(pack_block, encoder.blocks)),
        reading_back=pack_attention(back.cross_attention, back.query_norm),
        mlp=pack_feed_forward(back.mlp, back.mlp_norm),
        head=numbers(back.final_norm.scale)[:, None] * numbers(back.head.kernel),
        config=config,
        shape=shape,
    )
    return place_like(packed, model.token_embedding.embedding)


def encode(
    packed: PackedPerceiver,
    source: Int[Array, "B S"] | Float[Array, "B S D"],
    lengths: Int[Array, " B"],
) -> Float[Array, "B M D"]:
    """The latents of text or of vectors, as ``PerceiverAutoencoder`` gives them."""
    everything = encode_part(packed, source, lengths, jnp.zeros_like(lengths), lengths)
    return behind_reading(packed, everything.read, lengths)


def encode_part(
    packed: PackedPerceiver,
    source: Int[Array, "B S"] | Float[Array, "B S D"],
    counts: Int[Array, " B"],
    starts: Int[Array, " B"],
    lengths: Int[Array, " B"],
) -> Reading:
    """What the latents read of a part of the input: ``counts`` of ``lengths``, from ``starts`` on.

    ``behind_reading`` makes latents of what ``joined`` makes of all parts.
    """
    size = source.shape[1]
    rest = -size % min(size, TILE)
    padded = jnp.pad(source, ((0, 0), (0, rest), *[(0, 0)] * (source.ndim - 2)))

    def inputs(start: Int[Array, ""], count: int) -> Float[Array, "B S D"]:
        part = jax.lax.dynamic_slice_in_dim(padded, start, count, axis=1)
        return _inputs(packed, part, lengths, starts + start)

    return read(packed.reading, _asking(packed, lengths), inputs, size, counts, packed.shape)


def behind_reading(
    packed: PackedPerceiver, found: Float[Array, "B M D"], lengths: Int[Array, " B"]
) -> Float[Array, "B M D"]:
    """The latents that have ``found`` that in inputs of ``lengths``."""
    x = _asking(packed, lengths) + times(found, packed.reading.out)
    everything = jnp.ones((1, 1, x.shape[1]), dtype=bool)
    for block in packed.blocks:
        x = through(block, x, everything, packed.shape)
    return norm(x, packed.shape) * jnp.asarray(packed.vectors.final_scale)[None, None]


def attention(
    packed: PackedPerceiver, tokens: Int[Array, "B S"], lengths: Int[Array, " B"]
) -> Float[Array, "B N M S"]:
    """Where in the text every head of every latent looks."""
    inputs = _inputs(packed, tokens, lengths, jnp.zeros_like(lengths))
    asking = _asking(packed, lengths)
    return reading_weights(packed.reading, asking, inputs, lengths, packed.shape)


def reconstruct(
    packed: PackedPerceiver, tokens: Int[Array, "B S"], lengths: Int[Array, " B"]
) -> Reconstruction:
    """The latents of text, and the text that is read back from them alone."""
    latents = encode(packed, tokens, lengths)
    back, log_probs = read_back(
        packed, jnp.arange(tokens.shape[1])[None], lengths, lengths, latents
    )
    return Reconstruction(latents, back, log_probs)


def read_back(
    packed: PackedPerceiver,
    positions: Int[Array, "#B S"],
    counts: Int[Array, " B"],
    lengths: Int[Array, " B"],
    latents: Float[Array, "B M D"],
) -> tuple[Int[Array, "B S"], Float[Array, "B S"]]:
    """The likeliest symbols at the first ``counts`` of ``positions``, and their log-probabilities.

    ``lengths`` are those of the whole text, of which there are ``latents``.
    """
    memory = key_values(latents, packed.reading_back.key_value, packed.shape)
    batch, size = lengths.shape[0], positions.shape[1]
    tile = min(size, max(TILE // batch, SHORTEST_TILE))
    asked = jnp.pad(positions, ((0, 0), (0, -size % tile)))

    def step(start: Int[Array, ""], found: tuple[Array, Array]) -> tuple[Array, Array]:
        some = jax.lax.dynamic_slice_in_dim(asked, start, tile, axis=1)
        log_probs = jax.nn.log_softmax(_logits(packed, memory, lengths, some), axis=-1)
        likeliest = jnp.argmax(log_probs, axis=-1).astype(jnp.int32)
        return (
            jax.lax.dynamic_update_slice(found[0], likeliest, (0, start)),
            jax.lax.dynamic_update_slice(found[1], jnp.max(log_probs, axis=-1), (0, start)),
        )

    padded = batch, asked.shape[1]
    nothing = jnp.zeros(padded, jnp.int32), jnp.zeros(padded)
    back, log_probs = over_tiles(step, nothing, size, tile, counts)
    return back[:, :size], log_probs[:, :size]


def _logits(
    packed: PackedPerceiver,
    memory: KeyValues,
    lengths: Int[Array, " B"],
    positions: Int[Array, "#B S"],
) -> Float[Array, "B S V"]:
    """Logits over the symbols at ``positions``, read from ``memory``."""
    shape, back = packed.shape, packed.reading_back
    everything = jnp.ones((1, 1, memory.keys.shape[2]), dtype=bool)
    x = _features(packed, lengths, positions)
    queries = split_heads(times(norm(x, shape), back.query), shape)
    x = x + times(attend(queries, memory, everything)[0], back.out)
    return times(norm(fed_forward(packed.mlp, x, shape), shape), packed.head)


def _asking(packed: PackedPerceiver, lengths: Int[Array, " B"]) -> Float[Array, "B M D"]:
    """The latents before they have read anything."""
    return jnp.asarray(packed.vectors.latents)[None] + latent_addresses(lengths, packed.config)


def _inputs(
    packed: PackedPerceiver,
    source: Int[Array, "B S"] | Float[Array, "B S D"],
    lengths: Int[Array, " B"],
    starts: Int[Array, " B"],
) -> Float[Array, "B S D"]:
    """What is read of a part of the text, or of the vectors, from ``starts`` on."""
    vectors = jnp.asarray(packed.vectors.token_embedding)[source] if source.ndim == 2 else source
    positions = starts[:, None] + jnp.arange(source.shape[1])[None]
    return vectors + _features(packed, lengths, positions)


def _features(
    packed: PackedPerceiver, lengths: Int[Array, " B"], positions: Int[Array, "#B S"]
) -> Float[Array, "B S D"]:
    return position_features(positions.astype(jnp.float32), lengths, packed.config)

"""An encoder's parameters laid out for inference, and forward passes over them.

Blocks are those of models/packed_blocks.py. Where only some positions are asked for, the last
block reads from there alone.

Axis letters: B batch, T position, K asked position, D embed_dim, V vocab.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.encoder import MaskedLanguageModel
from models.masks import padding_mask
from models.packed_blocks import (
    Matrix,
    PackedBlock,
    Shape,
    attend,
    fed_forward,
    norm,
    on_host,
    pack_block,
    place_like,
    through,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedEncoder:
    """A masked language model, to be read by ``symbol_logits`` and ``logits_at``."""

    token_embedding: Matrix
    position_embedding: Matrix
    blocks: tuple[PackedBlock, ...]
    head: Matrix
    shape: Shape


jax.tree_util.register_dataclass(
    PackedEncoder,
    data_fields=["token_embedding", "position_embedding", "blocks", "head"],
    meta_fields=["shape"],
)


def pack(model: MaskedLanguageModel) -> PackedEncoder:
    """The parameters of ``model``, packed, where they were; worked out on the host."""
    encoder, config = model.encoder, model.config
    table = on_host(encoder.token_embedding.embedding)
    packed = PackedEncoder(
        token_embedding=table,
        position_embedding=on_host(encoder.position_embedding.embedding),
        blocks=tuple(map(pack_block, encoder.blocks)),
        head=on_host(encoder.final_norm.scale)[:, None] * table[: config.vocab_size].T,
        shape=Shape(num_heads=config.num_heads, epsilon=encoder.final_norm.epsilon),
    )
    return place_like(packed, encoder.token_embedding.embedding)


def symbol_logits(
    packed: PackedEncoder, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
) -> Float[Array, "B T V"]:
    """Logits over the symbols at every position, as ``MaskedLanguageModel`` gives them."""
    mask = padding_mask(lengths, tokens.shape[1])
    x = _embedded(packed, tokens)
    for block in packed.blocks:
        x = through(block, x, mask, packed.shape)
    return norm(x, packed.shape) @ packed.head


def logits_at(
    packed: PackedEncoder,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    positions: Int[Array, "B K"],
) -> Float[Array, "B K V"]:
    """Logits over the symbols at ``positions`` alone."""
    mask = padding_mask(lengths, tokens.shape[1])
    x = _embedded(packed, tokens)
    for block in packed.blocks[:-1]:
        x = through(block, x, mask, packed.shape)
    asked = jnp.take_along_axis(x, positions[:, :, None], axis=1)
    x = _at(packed.blocks[-1], asked, x, mask, packed.shape)
    return norm(x, packed.shape) @ packed.head


def _embedded(packed: PackedEncoder, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    return packed.token_embedding[tokens] + packed.position_embedding[None, : tokens.shape[1]]


def _at(
    block: PackedBlock,
    asked: Float[Array, "B K D"],
    x: Float[Array, "B T D"],
    mask: Bool[Array, "B 1 T"],
    shape: Shape,
) -> Float[Array, "B K D"]:
    """The positions that are asked for through a block; all of ``x`` is read."""
    of_queries, of_memory = jnp.split(block.query_key_value, [x.shape[-1]], axis=1)
    keys, values = jnp.split(norm(x, shape) @ of_memory, 2, axis=-1)
    queries = norm(asked, shape) @ of_queries
    asked = asked + attend(queries, keys, values, mask, shape) @ block.out
    return fed_forward(block.mlp, asked, shape)

"""A stack of blocks laid out for speed, and the passes of an encoder and a decoder over it.

Blocks are those of models/packed_blocks.py. Where only some positions are asked for, the last
block reads from there alone.

Axis letters: B batch, T position, S key position, K asked position, D embed_dim, V vocab.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues, write_cache
from models.blocks import TransformerConfig, TransformerStack
from models.decoder import CausalLanguageModel
from models.encoder import MaskedLanguageModel
from models.masks import causal_mask, combine_masks, padding_mask
from models.packed_blocks import (
    Matrix,
    PackedBlock,
    PackedEmbedding,
    Shape,
    attend,
    embedded,
    fed_forward,
    key_values,
    norm,
    numbers,
    own,
    pack_block,
    pack_embedding,
    place_like,
    split_heads,
    through,
)
from models.products import times


class Read(NamedTuple):
    """The final states of tokens, as the head takes them, and what each block read."""

    states: Float[Array, "B T D"]
    key_values: tuple[KeyValues, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedStack:
    """A stack, to be read by ``symbol_logits`` and ``logits_at``, or by ``PackedDecoder``.

    The final norm's scale is part of ``unembedding``.
    """

    embedding: PackedEmbedding
    blocks: tuple[PackedBlock, ...]
    unembedding: Matrix
    config: TransformerConfig
    shape: Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedDecoder(PackedStack):
    """What ``CausalLanguageModel`` does, for models/generation.py."""

    def __call__(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
    ) -> Float[Array, "B T V"]:
        """Logits for the token after every position."""
        return self.head(self.read(tokens, lengths).states)

    def read(self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Read:
        """The states of tokens that see only those before them, with what to continue from."""
        size = tokens.shape[1]
        mask = combine_masks(causal_mask(size), padding_mask(lengths, size))
        return self.run(tokens, jnp.arange(size)[None], mask)

    def run(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "#B T"],
        mask: Bool[Array, "#B #T S"],
        caches: tuple[KeyValues, ...] | None = None,
    ) -> Read:
        """The final states; ``caches`` are stored into and read as ``TransformerStack`` does."""
        x, projected = embedded(self.embedding, tokens, positions, self.shape)
        memories = []
        for index, block in enumerate(self.blocks):
            if index or projected is None:
                projected = times(norm(x, self.shape), block.query_key_value)
            queries, memory = own(projected, self.shape)
            if caches is not None:
                memory = write_cache(caches[index], memory, positions[:, 0])
            x = x + times(attend(queries, memory, mask)[0], block.out)
            x = fed_forward(block.mlp, x, self.shape)
            memories.append(memory)
        return Read(norm(x, self.shape), tuple(memories))

    def head(self, states: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Logits over the symbols."""
        return times(states, self.unembedding)


_META = ["config", "shape"]
for _kind in (PackedStack, PackedDecoder):
    jax.tree_util.register_dataclass(
        _kind,
        data_fields=[name for name in _kind.__dataclass_fields__ if name not in _META],
        meta_fields=_META,
    )

Kind = TypeVar("Kind", bound=PackedStack)


def pack(model: MaskedLanguageModel) -> PackedStack:
    """The parameters of an encoder, packed, where they were."""
    return _pack(PackedStack, model.encoder)


def pack_decoder(model: CausalLanguageModel) -> PackedDecoder:
    """The parameters of a decoder, packed, where they were."""
    return _pack(PackedDecoder, model)


def _pack(kind: type[Kind], stack: TransformerStack) -> Kind:
    config, table = stack.config, numbers(stack.token_embedding.embedding)
    blocks = tuple(map(pack_block, stack.blocks))
    first = blocks[0].query_key_value
    packed = kind(
        embedding=pack_embedding(stack.token_embedding, stack.position_embedding, first),
        blocks=blocks,
        unembedding=numbers(stack.final_norm.scale)[:, None] * table[: config.vocab_size].T,
        config=config,
        shape=Shape(num_heads=config.num_heads, epsilon=stack.final_norm.epsilon),
    )
    return place_like(packed, stack.token_embedding.embedding)


def symbol_logits(
    packed: PackedStack, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
) -> Float[Array, "B T V"]:
    """Logits over the symbols at every position, as ``MaskedLanguageModel`` gives them."""
    x = _before(packed, tokens, lengths, len(packed.blocks))
    return times(norm(x, packed.shape), packed.unembedding)


def logits_at(
    packed: PackedStack,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    positions: Int[Array, "B K"],
) -> Float[Array, "B K V"]:
    """Logits over the symbols at ``positions`` alone.

    Those of a row come first, and a negative one asks for nothing: what stands in its place means
    nothing. As many are computed as the row asks for that asks for the most, one after another: in
    one product with room for all they would take as long as all every time.
    """
    asked_of = _readable(packed, tokens, lengths)

    def ask(index: Int[Array, ""], found: Float[Array, "B K V"]) -> Float[Array, "B K V"]:
        places = jax.lax.dynamic_slice_in_dim(positions, index, 1, axis=1)
        logits = asked_of(jnp.maximum(places, 0))
        return jax.lax.dynamic_update_slice_in_dim(found, logits, index, axis=1)

    found = jnp.zeros((*positions.shape, packed.unembedding.shape[1]))
    return jax.lax.fori_loop(0, jnp.max(jnp.sum(positions >= 0, axis=1)), ask, found)


def logits_at_once(
    packed: PackedStack,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    positions: Int[Array, "B K"],
) -> Float[Array, "B K V"]:
    """Logits over the symbols at all of ``positions`` in one product, as training asks for them."""
    return _readable(packed, tokens, lengths)(positions)


def _readable(
    packed: PackedStack, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
) -> Callable[[Int[Array, "B K"]], Float[Array, "B K V"]]:
    """What gives the logits at some positions, from what the last block reads."""
    shape, last = packed.shape, packed.blocks[-1]
    x = _before(packed, tokens, lengths, len(packed.blocks) - 1)
    of_queries, of_memory = jnp.split(last.query_key_value, [x.shape[-1]], axis=1)
    memory = key_values(norm(x, shape), of_memory, shape)
    mask = padding_mask(lengths, x.shape[1])

    def logits(places: Int[Array, "B K"]) -> Float[Array, "B K V"]:
        asked = jnp.take_along_axis(x, places[:, :, None], axis=1)
        queries = split_heads(times(norm(asked, shape), of_queries), shape)
        asked = asked + times(attend(queries, memory, mask)[0], last.out)
        states = norm(fed_forward(last.mlp, asked, shape), shape)
        return times(states, packed.unembedding)

    return logits


def _before(
    packed: PackedStack, tokens: Int[Array, "B T"], lengths: Int[Array, " B"], num_blocks: int
) -> Float[Array, "B T D"]:
    """The states that come out of the first blocks, so many of them."""
    size, shape = tokens.shape[1], packed.shape
    mask = padding_mask(lengths, size)
    x, projected = embedded(packed.embedding, tokens, jnp.arange(size)[None], shape)
    for index, block in enumerate(packed.blocks[:num_blocks]):
        x = through(block, x, mask, shape, None if index else projected)
    return x

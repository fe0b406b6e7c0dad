"""An encoder-decoder's parameters laid out for speed, and what models/decoding.py asks of them.

Blocks are those of models/packed_blocks.py.

Axis letters: B batch, T target position, S source position, N heads, D embed_dim, V vocab,
L decoder layers.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues, write_cache
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.masks import causal_mask, combine_masks, padding_mask
from models.packed_blocks import (
    Matrix,
    PackedBlock,
    PackedDecoderBlock,
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
    pack_decoder_block,
    pack_embedding,
    place_like,
    split_heads,
    through,
)
from models.products import times


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedEncoderDecoder:
    """What ``EncoderDecoder`` does, in fewer operations."""

    source: PackedEmbedding
    encoder_blocks: tuple[PackedBlock, ...]
    target: PackedEmbedding
    decoder_blocks: tuple[PackedDecoderBlock, ...]
    head: Matrix
    config: EncoderDecoderConfig
    shape: Shape

    def encode(self, source: Int[Array, "B S"], lengths: Int[Array, " B"]) -> tuple[KeyValues, ...]:
        """The encoded source as each decoder block will read it."""
        shape, size = self.shape, source.shape[1]
        mask = padding_mask(lengths, size)
        positions = self.config.positions_in_source(lengths, size)
        x, projected = embedded(self.source, source, positions, shape)
        for index, block in enumerate(self.encoder_blocks):
            x = through(block, x, mask, shape, None if index else projected)
        x = norm(x, shape)
        return tuple(key_values(x, block.cross.key_value, shape) for block in self.decoder_blocks)

    def read_target(
        self,
        memories: tuple[KeyValues, ...],
        source_lengths: Int[Array, " B"],
        target_inputs: Int[Array, "B T"],
        target_lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B T V"], Float[Array, "B L N T S"]]:
        """Next-token logits for known targets, and the cross-attention of every decoder layer."""
        size = target_inputs.shape[1]
        source_mask = padding_mask(source_lengths, memories[0].keys.shape[2])
        mask = combine_masks(causal_mask(size), padding_mask(target_lengths, size))
        x, projected = embedded(self.target, target_inputs, jnp.arange(size)[None], self.shape)
        layers = []
        for index, (block, memory) in enumerate(zip(self.decoder_blocks, memories, strict=True)):
            queries, itself = self._own(block, x, None if index else projected)
            x = x + times(attend(queries, itself, mask)[0], block.out)
            x, weights = self._crossed(block, x, memory, source_mask)
            layers.append(weights)
        return times(norm(x, self.shape), self.head), jnp.stack(layers, axis=1)

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
        mask = padding_mask(positions + 1, caches[0].keys.shape[2])
        source_mask = padding_mask(source_lengths, memories[0].keys.shape[2])
        x, projected = embedded(self.target, last[:, None], positions[:, None], self.shape)
        written = []
        for index, (block, memory) in enumerate(zip(self.decoder_blocks, memories, strict=True)):
            queries, new = self._own(block, x, None if index else projected)
            written.append(write_cache(caches[index], new, positions))
            x = x + times(attend(queries, written[-1], mask)[0], block.out)
            x, _ = self._crossed(block, x, memory, source_mask)
        logits = times(norm(x, self.shape), self.head)[:, 0]
        return logits.at[:, self.config.bos_id].set(-jnp.inf), tuple(written)

    def _own(
        self,
        block: PackedDecoderBlock,
        x: Float[Array, "B T D"],
        projected: Float[Array, "B T _"] | None,
    ) -> tuple[Float[Array, "B N T H"], KeyValues]:
        if projected is None:
            projected = times(norm(x, self.shape), block.query_key_value)
        return own(projected, self.shape)

    def _crossed(
        self,
        block: PackedDecoderBlock,
        x: Float[Array, "B T D"],
        memory: KeyValues,
        mask: Bool[Array, "B 1 S"],
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B N T S"]]:
        """``x`` behind the cross-attention and the feed-forward, and where it looked."""
        queries = split_heads(times(norm(x, self.shape), block.cross.query), self.shape)
        read, weights = attend(queries, memory, mask)
        x = x + times(read, block.cross.out)
        return fed_forward(block.mlp, x, self.shape), weights


_META = ["config", "shape"]
jax.tree_util.register_dataclass(
    PackedEncoderDecoder,
    data_fields=[name for name in PackedEncoderDecoder.__dataclass_fields__ if name not in _META],
    meta_fields=_META,
)


def pack(model: EncoderDecoder) -> PackedEncoderDecoder:
    """The parameters of ``model``, packed, where they were."""
    config = model.config
    encoder_blocks = tuple(map(pack_block, model.encoder_blocks))
    decoder_blocks = tuple(
        pack_decoder_block(block, model.encoder_norm) for block in model.decoder_blocks
    )
    packed = PackedEncoderDecoder(
        source=pack_embedding(
            model.source_embedding, model.source_positions, encoder_blocks[0].query_key_value
        ),
        encoder_blocks=encoder_blocks,
        target=pack_embedding(
            model.target_embedding, model.target_positions, decoder_blocks[0].query_key_value
        ),
        decoder_blocks=decoder_blocks,
        head=numbers(model.decoder_norm.scale)[:, None] * numbers(model.head.kernel),
        config=config,
        shape=Shape(num_heads=config.block.num_heads, epsilon=model.encoder_norm.epsilon),
    )
    return place_like(packed, model.head.kernel)

"""An encoder's parameters laid out for inference, and forward passes over them.

The same numbers in fewer and larger operations: the scales of the norms and of the queries are
multiplied into the matrices behind them, queries, keys and values come from one matrix, and the
softmax is divided after its product with the values, which is smaller than the weights. Where only
some positions are asked for, the last block reads from there alone.

Axis letters: B batch, T position, K asked position, N heads, H head_dim, D embed_dim, F mlp_dim,
V vocab.
Source: the block of models/blocks.py; the order of the division after Dao et al. (2022),
arXiv:2205.14135, section 3.1.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from models.blocks import TransformerBlock
from models.encoder import MaskedLanguageModel
from models.masks import padding_mask

# On the host while it is packed, on a device afterwards.
Matrix = Float[Array, "_ _"] | Float[np.ndarray, "_ _"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedBlock:
    """One block; ``query_key_value`` holds the three matrices side by side, in this order."""

    query_key_value: Matrix
    out: Matrix
    gate: Matrix
    up: Matrix
    down: Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedEncoder:
    """A masked language model, to be read by ``symbol_logits`` and ``logits_at``."""

    token_embedding: Matrix
    position_embedding: Matrix
    blocks: tuple[PackedBlock, ...]
    head: Matrix
    num_heads: int
    epsilon: float


jax.tree_util.register_dataclass(
    PackedEncoder,
    data_fields=["token_embedding", "position_embedding", "blocks", "head"],
    meta_fields=["num_heads", "epsilon"],
)


def pack(model: MaskedLanguageModel) -> PackedEncoder:
    """The parameters of ``model``, packed, where they were; worked out on the host."""
    encoder, config = model.encoder, model.config
    table = _on_host(encoder.token_embedding.embedding)
    packed = PackedEncoder(
        token_embedding=table,
        position_embedding=_on_host(encoder.position_embedding.embedding),
        blocks=tuple(_pack_block(block) for block in encoder.blocks),
        head=_on_host(encoder.final_norm.scale)[:, None] * table[: config.vocab_size].T,
        num_heads=config.num_heads,
        epsilon=encoder.final_norm.epsilon,
    )
    return jax.device_put(packed, encoder.token_embedding.embedding[...].sharding)


def _pack_block(block: TransformerBlock) -> PackedBlock:
    attention, mlp = block.attention, block.mlp
    before, between = (
        _on_host(norm.scale)[:, None] for norm in (block.attention_norm, block.mlp_norm)
    )
    width = before.shape[0]
    queries, keys, values = (
        before * _on_host(projection.kernel).reshape(width, width)
        for projection in (attention.query_proj, attention.key_proj, attention.value_proj)
    )
    return PackedBlock(
        query_key_value=np.concatenate(
            [queries * np.float32(attention.scale), keys, values], axis=1
        ),
        out=_on_host(attention.out_proj.kernel).reshape(width, width),
        gate=between * _on_host(mlp.gate_proj.kernel),
        up=between * _on_host(mlp.up_proj.kernel),
        down=_on_host(mlp.down_proj.kernel),
    )


def _on_host(param: nnx.Param | None) -> np.ndarray:
    assert param is not None
    return np.asarray(param[...])


def symbol_logits(
    packed: PackedEncoder, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
) -> Float[Array, "B T V"]:
    """Logits over the symbols at every position, as ``MaskedLanguageModel`` gives them."""
    mask = padding_mask(lengths, tokens.shape[1])
    x = _embedded(packed, tokens)
    for block in packed.blocks:
        x = _through(packed, block, x, mask)
    return _norm(x, packed.epsilon) @ packed.head


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
        x = _through(packed, block, x, mask)
    asked = jnp.take_along_axis(x, positions[:, :, None], axis=1)
    x = _at(packed, packed.blocks[-1], asked, x, mask)
    return _norm(x, packed.epsilon) @ packed.head


def _embedded(packed: PackedEncoder, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    return packed.token_embedding[tokens] + packed.position_embedding[None, : tokens.shape[1]]


def _through(
    packed: PackedEncoder, block: PackedBlock, x: Float[Array, "B T D"], mask: Bool[Array, "B 1 T"]
) -> Float[Array, "B T D"]:
    """Every position through a block."""
    projected = _norm(x, packed.epsilon) @ block.query_key_value
    queries, keys, values = jnp.split(projected, 3, axis=-1)
    return _rest(block, packed, x, _attend(queries, keys, values, mask, packed.num_heads))


def _at(
    packed: PackedEncoder,
    block: PackedBlock,
    asked: Float[Array, "B K D"],
    x: Float[Array, "B T D"],
    mask: Bool[Array, "B 1 T"],
) -> Float[Array, "B K D"]:
    """The positions that are asked for through a block; all of ``x`` is read."""
    width = x.shape[-1]
    of_queries, of_memory = jnp.split(block.query_key_value, [width], axis=1)
    keys, values = jnp.split(_norm(x, packed.epsilon) @ of_memory, 2, axis=-1)
    queries = _norm(asked, packed.epsilon) @ of_queries
    return _rest(block, packed, asked, _attend(queries, keys, values, mask, packed.num_heads))


def _rest(
    block: PackedBlock,
    packed: PackedEncoder,
    x: Float[Array, "B K D"],
    attended: Float[Array, "B K D"],
) -> Float[Array, "B K D"]:
    """What follows attention in a block."""
    x = x + attended @ block.out
    normed = _norm(x, packed.epsilon)
    return x + (jax.nn.silu(normed @ block.gate) * (normed @ block.up)) @ block.down


def _attend(
    queries: Float[Array, "B K D"],
    keys: Float[Array, "B T D"],
    values: Float[Array, "B T D"],
    mask: Bool[Array, "B 1 T"],
    num_heads: int,
) -> Float[Array, "B K D"]:
    """What every query reads; softmax in float32, as everywhere."""
    batch, _, width = queries.shape
    q, k, v = (a.reshape(batch, -1, num_heads, width // num_heads) for a in (queries, keys, values))
    scores = jnp.einsum("BKNH,BTNH->BNKT", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    sums = jnp.sum(weights, axis=-1)
    read = jnp.einsum("BNKT,BTNH->BKNH", weights.astype(v.dtype), v)
    read = read / jnp.swapaxes(sums, 1, 2)[..., None].astype(v.dtype)
    return read.reshape(batch, -1, width)


def _norm(x: Float[Array, "*B D"], epsilon: float) -> Float[Array, "*B D"]:
    """RMSNorm without its scale."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + epsilon)).astype(x.dtype)

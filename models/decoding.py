"""Decoding with an encoder-decoder, on the device: greedily, in one go or in parts, and by beam.

The source is encoded once. A row ends at ``eos_id``, which is not part of the output, or after as
many tokens as it may have; a loop ends with the last of its rows.

Axis letters: B batch, K beam, T target position, S source position, N heads, L decoder layers,
V vocab.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.packed_encoder_decoder import PackedEncoderDecoder

# As it was trained, or packed for inference.
Model = EncoderDecoder | PackedEncoderDecoder


class Decoded(NamedTuple):
    """Decoded targets.

    ``log_probs`` are natural logarithms, at most 0; ``has_ended`` is True where the model itself
    ended the target, False where a limit did. At and past a row's length, tokens and log_probs are
    0.
    """

    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    log_probs: Float[Array, "B T"]
    has_ended: Bool[Array, " B"]


class DecodingState(NamedTuple):
    """Rows on their way; each may be at another length, so rows can be regrouped in between.

    ``last`` is the token to go on from, ``limits`` the most tokens of a row.
    """

    decoded: Decoded
    last: Int[Array, " B"]
    limits: Int[Array, " B"]
    source_lengths: Int[Array, " B"]
    memories: tuple[KeyValues, ...]
    caches: tuple[KeyValues, ...]

    @property
    def is_running(self) -> Bool[Array, " B"]:
        """True at the rows that have not ended."""
        return ~self.decoded.has_ended & (self.decoded.lengths < self.limits)


def decode(
    model: Model,
    source: Int[Array, "B S"],
    source_lengths: Int[Array, " B"],
    max_new_tokens: Int[Array, " B"],
) -> Decoded:
    """The most likely token at every step, until each row ends."""
    state = start(model, source, source_lengths, max_new_tokens)
    return advance(model, state, state.decoded.tokens.shape[1]).decoded


def start(
    model: Model,
    source: Int[Array, "B S"],
    source_lengths: Int[Array, " B"],
    max_new_tokens: Int[Array, " B"],
) -> DecodingState:
    """The encoded source, with nothing decoded yet.

    T is the most tokens that the model may need for sources of at most S symbols, and the most
    that a row can have.
    """
    memories = model.encode(source, source_lengths)
    size = model.config.max_new_tokens(source.shape[1])
    return _nothing_decoded(model.config, source_lengths, memories, size)._replace(
        limits=jnp.minimum(max_new_tokens, size)
    )


def _nothing_decoded(
    config: EncoderDecoderConfig,
    source_lengths: Int[Array, " B"],
    memories: tuple[KeyValues, ...],
    size: int,
) -> DecodingState:
    """Rows of which nothing is decoded, with room for ``size`` tokens, and all of it to be used."""
    batch = source_lengths.shape[0]
    decoded = Decoded(
        tokens=jnp.zeros((batch, size), jnp.int32),
        lengths=jnp.zeros(batch, jnp.int32),
        log_probs=jnp.zeros((batch, size), jnp.float32),
        has_ended=jnp.zeros(batch, bool),
    )
    return DecodingState(
        decoded=decoded,
        last=jnp.full(batch, config.bos_id, jnp.int32),
        limits=jnp.full(batch, size, jnp.int32),
        source_lengths=source_lengths,
        memories=memories,
        caches=config.empty_caches(batch, size),
    )


def advance(model: Model, state: DecodingState, num_steps: int) -> DecodingState:
    """The state after up to ``num_steps`` more tokens of every row."""

    def step(carry: tuple[Int[Array, ""], DecodingState]) -> tuple[Array, DecodingState]:
        return carry[0] + 1, _step(model, carry[1])

    def running(carry: tuple[Int[Array, ""], DecodingState]) -> Bool[Array, ""]:
        return (carry[0] < num_steps) & jnp.any(carry[1].is_running)

    return jax.lax.while_loop(running, step, (jnp.array(0, jnp.int32), state))[1]


def _step(model: Model, state: DecodingState) -> DecodingState:
    """The state with the likeliest token of every running row written down."""
    decoded = state.decoded
    size = decoded.tokens.shape[1]
    # A row that has ended goes on at its last position, and what comes of it is dropped.
    positions = jnp.minimum(decoded.lengths, size - 1)
    logits, caches = model.next_logits(
        state.last, positions, state.caches, state.memories, state.source_lengths
    )
    chosen = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    log_probs = jnp.max(jax.nn.log_softmax(logits, axis=-1), axis=-1)
    running = state.is_running
    ended = running & _is_end(model, chosen)
    kept = running & ~ended
    here = kept[:, None] & (jnp.arange(size)[None] == positions[:, None])
    return state._replace(
        decoded=Decoded(
            tokens=jnp.where(here, chosen[:, None], decoded.tokens),
            lengths=decoded.lengths + kept.astype(jnp.int32),
            log_probs=jnp.where(here, log_probs[:, None], decoded.log_probs),
            has_ended=decoded.has_ended | ended,
        ),
        last=jnp.where(kept, chosen, state.last),
        caches=caches,
    )


def _is_end(model: Model, tokens: Int[Array, "*B"]) -> Bool[Array, "*B"]:
    eos_id = model.config.eos_id
    return jnp.zeros(tokens.shape, bool) if eos_id is None else tokens == eos_id


def cross_attention(
    model: Model,
    source: Int[Array, "B S"],
    source_lengths: Int[Array, " B"],
    target: Int[Array, "B T"],
    target_lengths: Int[Array, " B"],
) -> Float[Array, "B L N T S"]:
    """Where the decoder looks while it writes ``target``, by layer and head.

    One pass over the whole target instead of a record of every step: the weights are the same, and
    decoding carries nothing for them. Past a row's length they mean nothing.
    """
    bos = jnp.full((source.shape[0], 1), model.config.bos_id, target.dtype)
    inputs = jnp.concatenate([bos, target[:, :-1]], axis=1)
    memories = model.encode(source, source_lengths)
    return model.read_target(memories, source_lengths, inputs, target_lengths)[1]


def pack(state: DecodingState) -> dict[str, Array]:
    """The arrays of a state by name, with a row for each of its rows, which can be regrouped."""
    layers = {
        f"{kind}_{part}_{index}": getattr(key_values, part)
        for kind, memory in (("memory", state.memories), ("cache", state.caches))
        for index, key_values in enumerate(memory)
        for part in KeyValues._fields
    }
    rows = {name: getattr(state, name) for name in ("last", "limits", "source_lengths")}
    return state.decoded._asdict() | rows | layers


def unpack(model: Model, arrays: Mapping[str, Array]) -> DecodingState:
    """The state whose arrays ``pack`` gave."""
    memories, caches = (
        tuple(
            KeyValues(*(arrays[f"{kind}_{part}_{index}"] for part in KeyValues._fields))
            for index in range(model.config.num_decoder_layers)
        )
        for kind in ("memory", "cache")
    )
    return DecodingState(
        decoded=Decoded(*(arrays[name] for name in Decoded._fields)),
        last=arrays["last"],
        limits=arrays["limits"],
        source_lengths=arrays["source_lengths"],
        memories=memories,
        caches=caches,
    )


def packed_shapes(
    config: EncoderDecoderConfig, source_size: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """What ``pack`` gives for one source padded to ``source_size``."""

    def begin() -> dict[str, Array]:
        memories = config.empty_caches(1, source_size)
        size = config.max_new_tokens(source_size)
        return pack(_nothing_decoded(config, jnp.ones(1, jnp.int32), memories, size))

    return jax.eval_shape(begin)

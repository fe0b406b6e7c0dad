"""Generation with a causal decoder, on the device: in one go or in parts.

The prompt is read once; from then on every token costs one position, over a key/value cache.

Axis letters: B batch, T position, S key position, N heads, H head_dim, D embed_dim, V vocab.
Source: nucleus sampling from Holtzman et al. (2019), arXiv:1904.09751, section 3.1.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt32

from models.attention import KeyValues
from models.blocks import TransformerConfig
from models.decoder import CausalLanguageModel
from models.masks import padding_mask
from models.packed import PackedDecoder

# As it was trained, or packed for inference.
Model = CausalLanguageModel | PackedDecoder


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


class GenerationState(NamedTuple):
    """Rows on their way; each may be at another length, so rows can be regrouped in between.

    ``last`` is the state of the last token, ``lengths`` those of the prompts, and ``num_drawn``
    how many tokens have come since.
    """

    last: Float[Array, "B D"]
    lengths: Int[Array, " B"]
    num_drawn: Int[Array, " B"]
    caches: tuple[KeyValues, ...]


class _Part(NamedTuple):
    """What one step of a part hands to the next."""

    num_done: Int[Array, ""]
    state: GenerationState
    generated: Generated


def generate(
    model: Model,
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
    size = model.config.max_seq_len
    steps = jnp.max(jnp.minimum(max_new_tokens, size + 1 - lengths))
    return _run(model, start(model, tokens, lengths), sampling, size, steps).generated


def score(
    model: Model, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
) -> Float[Array, "B T V"]:
    """The log-probabilities of whatever may follow each position (natural logarithms)."""
    return jax.nn.log_softmax(model(tokens, lengths), axis=-1)


def start(model: Model, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> GenerationState:
    """The prompts, read, with nothing generated yet."""
    prompt = model.read(tokens, lengths)
    size = model.config.max_seq_len
    return GenerationState(
        last=jnp.take_along_axis(prompt.states, (lengths - 1)[:, None, None], axis=1)[:, 0],
        lengths=lengths,
        num_drawn=jnp.zeros_like(lengths),
        caches=tuple(_widen(key_values, size) for key_values in prompt.key_values),
    )


def advance(
    model: Model, state: GenerationState, sampling: Sampling, num_steps: int
) -> tuple[GenerationState, Generated]:
    """The state after ``num_steps`` more tokens of every row, and these tokens.

    What a row draws past its room means nothing, as with ``generate``.
    """
    part = _run(model, state, sampling, num_steps, jnp.array(num_steps, jnp.int32))
    return part.state, part.generated


def _run(
    model: Model,
    state: GenerationState,
    sampling: Sampling,
    size: int,
    num_steps: Int[Array, ""],
) -> _Part:
    """Up to ``size`` tokens from ``state``, of which ``num_steps`` are drawn."""
    shape = (state.lengths.shape[0], size)
    noise = draw_noise(sampling, state.num_drawn, size, model.config.vocab_size)
    generated = Generated(
        tokens=jnp.zeros(shape, jnp.int32),
        log_probs=jnp.zeros((*shape, model.config.vocab_size), jnp.float32),
    )

    def step(part: _Part) -> _Part:
        here, (tokens, log_probs) = part.num_done, part.generated
        state, chosen, chances = _step(model, part.state, sampling, noise[:, here])
        written = Generated(tokens.at[:, here].set(chosen), log_probs.at[:, here].set(chances))
        return _Part(here + 1, state, written)

    begun = _Part(jnp.array(0, jnp.int32), state, generated)
    return jax.lax.while_loop(lambda part: part.num_done < num_steps, step, begun)


def _step(
    model: Model, state: GenerationState, sampling: Sampling, noise: Float[Array, "B V"]
) -> tuple[GenerationState, Int[Array, " B"], Float[Array, "B V"]]:
    """The state with one more token of every row, that token, and what all were worth."""
    size = model.config.max_seq_len
    logits = model.head(state.last)
    chosen = sample(logits, noise, sampling)
    positions = jnp.minimum(state.lengths + state.num_drawn, size - 1)
    mask = padding_mask(positions + 1, size)
    following = model.run(chosen[:, None], positions[:, None], mask, state.caches)
    state = GenerationState(
        following.states[:, 0], state.lengths, state.num_drawn + 1, following.key_values
    )
    return state, chosen, jax.nn.log_softmax(logits, axis=-1)


def _widen(key_values: KeyValues, size: int) -> KeyValues:
    missing = size - key_values.keys.shape[2]
    return KeyValues(
        *(jnp.pad(part, ((0, 0), (0, 0), (0, missing), (0, 0))) for part in key_values)
    )


def draw_noise(
    sampling: Sampling, first: Int[Array, " B"], num_draws: int, vocab_size: int
) -> Float[Array, "B K V"]:
    """What chance adds to the logits of so many draws of every row, of which it is the ``first``.

    All at once, as that takes little longer than one by one takes for one; zeros where no row
    draws. Largest with the noise is what ``jax.random.categorical`` would draw.
    Source: the Gumbel-max trick; Gumbel (1954), "Statistical Theory of Extreme Values".
    """
    indices = first[:, None] + jnp.arange(num_draws)[None]

    def draw(seed: UInt32[Array, ""], index: Int[Array, ""]) -> Float[Array, " V"]:
        return jax.random.gumbel(jax.random.fold_in(jax.random.key(seed), index), (vocab_size,))

    def all_draws() -> Float[Array, "B K V"]:
        return jax.vmap(jax.vmap(draw, (None, 0)))(sampling.seed, indices)

    shape = (*indices.shape, vocab_size)
    return jax.lax.cond(
        jnp.any(sampling.temperature > 0), all_draws, lambda: jnp.zeros(shape, jnp.float32)
    )


def sample(
    logits: Float[Array, "B V"], noise: Float[Array, "B V"], sampling: Sampling
) -> Int[Array, " B"]:
    """One token per row, drawn as ``sampling`` says, by ``noise`` of ``draw_noise``."""
    warm = sampling.temperature > 0
    scaled = logits / jnp.where(warm, sampling.temperature, 1.0)[:, None]
    kept = jnp.where(_nucleus(scaled, sampling.top_p), scaled, -jnp.inf)
    drawn = jnp.argmax(kept + noise, axis=-1)
    return jnp.where(warm, drawn, jnp.argmax(logits, axis=-1)).astype(jnp.int32)


def _nucleus(logits: Float[Array, "B V"], top_p: Float[Array, " B"]) -> Bool[Array, "B V"]:
    """True at the smallest set of likeliest tokens that holds ``top_p`` of the probability."""
    probs = jax.nn.softmax(logits, axis=-1)
    order = jnp.argsort(probs, axis=-1, descending=True)
    ranked = jnp.take_along_axis(probs, order, axis=-1)
    before = jnp.cumsum(ranked, axis=-1) - ranked
    ranks = jnp.argsort(order, axis=-1)
    return jnp.take_along_axis(before < top_p[:, None], ranks, axis=-1)


def pack(state: GenerationState) -> dict[str, Array]:
    """The arrays of a state by name, with a row for each of its rows, which can be regrouped."""
    caches = {
        f"{part}_{index}": getattr(cache, part)
        for index, cache in enumerate(state.caches)
        for part in KeyValues._fields
    }
    return {name: getattr(state, name) for name in ("last", "lengths", "num_drawn")} | caches


def unpack(model: Model, arrays: Mapping[str, Array]) -> GenerationState:
    """The state whose arrays ``pack`` gave."""
    return GenerationState(
        last=arrays["last"],
        lengths=arrays["lengths"],
        num_drawn=arrays["num_drawn"],
        caches=tuple(
            KeyValues(*(arrays[f"{part}_{index}"] for part in KeyValues._fields))
            for index in range(model.config.num_layers)
        ),
    )


def packed_shapes(config: TransformerConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """What ``pack`` gives for one prompt."""

    def begin() -> dict[str, Array]:
        one = jnp.ones(1, jnp.int32)
        return pack(start(CausalLanguageModel(config, rngs=nnx.Rngs(0)), one[None], one))

    shapes: Any = nnx.eval_shape(begin)
    return shapes

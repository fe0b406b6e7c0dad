"""Beam search with an encoder-decoder, on the device.

Hypotheses are compared by the probability of the whole target, with no reward for length: a beam
that is wide enough finds the most probable target, and a beam of one decodes greedily.

Axis letters: B batch, K beam, C candidate, T target position, S source position, V vocab.
Source: Dive into Deep Learning (2026), section "Beam Search"; Sutskever et al. (2014),
arXiv:1409.3215, section 3.2.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.attention import KeyValues
from models.decoding import Model


class Hypotheses(NamedTuple):
    """Targets of a row, best first once the search is over.

    ``scores`` are the natural logarithms of the whole targets' probabilities, that of the end
    token included; minus infinity where there is no such hypothesis. The rest is as in ``Decoded``.
    """

    tokens: Int[Array, "B K T"]
    lengths: Int[Array, "B K"]
    log_probs: Float[Array, "B K T"]
    has_ended: Bool[Array, "B K"]
    scores: Float[Array, "B K"]

    def finite(self) -> dict[str, Array]:
        """The same by name, with 0 for minus infinity and ``exists`` to tell which are there."""
        exists = self.scores > -jnp.inf
        return self._asdict() | {
            "scores": jnp.where(exists, self.scores, 0.0),
            "log_probs": jnp.where(exists[..., None], self.log_probs, 0.0),
            "exists": exists,
        }


class _Search(NamedTuple):
    """What one step hands to the next; every hypothesis in ``alive`` has ``num_done`` tokens.

    ``in_beam`` is True at the hypotheses that a row's own number of beams has room for.
    """

    in_beam: Bool[Array, "B K"]

    num_done: Int[Array, ""]
    alive: Hypotheses
    finished: Hypotheses
    last: Int[Array, "B K"]
    caches: tuple[KeyValues, ...]


def beam_search(
    model: Model,
    source: Int[Array, "B S"],
    source_lengths: Int[Array, " B"],
    max_new_tokens: Int[Array, " B"],
    num_beams: Int[Array, " B"],
    max_beams: int,
) -> Hypotheses:
    """The ``num_beams`` most probable targets of every row that its beam meets.

    Rows with beams of different widths, in 1..``max_beams`` = K, share a batch. The search of a
    row ends when nothing on its way can still beat what is finished.
    """
    batch, source_size = source.shape
    size = model.config.max_new_tokens(source_size)
    limits = jnp.minimum(max_new_tokens, size)
    memories = jax.tree.map(
        partial(jnp.repeat, repeats=max_beams, axis=0), model.encode(source, source_lengths)
    )
    lengths = jnp.repeat(source_lengths, max_beams)

    def step(search: _Search) -> _Search:
        positions = jnp.full(batch * max_beams, search.num_done)
        logits, caches = model.next_logits(
            search.last.ravel(), positions, search.caches, memories, lengths
        )
        log_probs = jax.nn.log_softmax(logits, axis=-1).reshape(batch, max_beams, -1)
        return _extend(search._replace(caches=caches), log_probs, limits, model.config.eos_id)

    in_beam = jnp.arange(max_beams)[None] < num_beams[:, None]
    start = _start(model, in_beam, size, limits)
    return jax.lax.while_loop(_is_running, step, start).finished


def _start(
    model: Model, in_beam: Bool[Array, "B K"], size: int, limits: Int[Array, " B"]
) -> _Search:
    shape = in_beam.shape
    nothing = Hypotheses(
        tokens=jnp.zeros((*shape, size), jnp.int32),
        lengths=jnp.zeros(shape, jnp.int32),
        log_probs=jnp.zeros((*shape, size), jnp.float32),
        has_ended=jnp.zeros(shape, bool),
        scores=jnp.full(shape, -jnp.inf),
    )
    # One hypothesis to begin with, the empty one: on its way, or finished where nothing may come.
    first = jnp.arange(shape[1])[None] == 0
    may_grow = limits[:, None] > 0
    return _Search(
        in_beam=in_beam,
        num_done=jnp.array(0, jnp.int32),
        alive=nothing._replace(scores=jnp.where(first & may_grow, 0.0, -jnp.inf)),
        finished=nothing._replace(scores=jnp.where(first & ~may_grow, 0.0, -jnp.inf)),
        last=jnp.full(shape, model.config.bos_id, jnp.int32),
        caches=model.config.empty_caches(shape[0] * shape[1], size),
    )


def _is_running(search: _Search) -> Bool[Array, ""]:
    """Whether a hypothesis on its way, which can only lose, is ahead of the last one finished."""
    best = jnp.max(search.alive.scores, axis=1)
    last = jnp.min(jnp.where(search.in_beam, search.finished.scores, jnp.inf), axis=1)
    return jnp.any(best > last)


def _extend(
    search: _Search, log_probs: Float[Array, "B K V"], limits: Int[Array, " B"], eos_id: int | None
) -> _Search:
    """The search after one more token of every hypothesis on its way."""
    batch, max_beams, vocab_size = log_probs.shape
    totals = (search.alive.scores[:, :, None] + log_probs).reshape(batch, -1)
    # What is no number is taken for the best, so that it comes out instead of being dropped.
    totals = jnp.where(jnp.isnan(totals), jnp.inf, totals)
    # At most one extension of each hypothesis ends it, so twice as many leave enough to go on.
    scores, indices = jax.lax.top_k(totals, min(2 * max_beams, totals.shape[1]))
    beams, tokens = indices // vocab_size, indices % vocab_size
    before = _choose(search.alive, beams)
    is_end = jnp.zeros(tokens.shape, bool) if eos_id is None else tokens == eos_id
    # An end that is not among the best of the beam would not have been taken by a beam of one.
    missing = tokens.shape[1] - max_beams
    counts = is_end & jnp.pad(search.in_beam, ((0, 0), (0, missing)))
    ended = before._replace(has_ended=counts, scores=jnp.where(counts, scores, -jnp.inf))
    chosen = jnp.take_along_axis(log_probs.reshape(batch, -1), indices, axis=1)
    longer = before._replace(
        tokens=before.tokens.at[:, :, search.num_done].set(tokens),
        log_probs=before.log_probs.at[:, :, search.num_done].set(chosen),
        lengths=before.lengths + 1,
    )
    kept_scores, kept = jax.lax.top_k(jnp.where(is_end, -jnp.inf, scores), max_beams)
    kept_scores = jnp.where(search.in_beam, kept_scores, -jnp.inf)
    alive = _choose(longer, kept)._replace(scores=kept_scores)
    is_full = (search.num_done + 1 >= limits)[:, None]
    cut = alive._replace(scores=jnp.where(is_full, kept_scores, -jnp.inf))
    return search._replace(
        num_done=search.num_done + 1,
        alive=alive._replace(scores=jnp.where(is_full, -jnp.inf, kept_scores)),
        finished=_best(search.in_beam, search.finished, ended, cut),
        last=jnp.take_along_axis(tokens, kept, axis=1),
        caches=_follow(search.caches, jnp.take_along_axis(beams, kept, axis=1)),
    )


def _choose(hypotheses: Hypotheses, indices: Int[Array, "B C"]) -> Hypotheses:
    """The hypotheses at ``indices`` of each row."""

    def take(values: Array) -> Array:
        where = indices.reshape(*indices.shape, *(1,) * (values.ndim - 2))
        return jnp.take_along_axis(values, where, axis=1)

    return Hypotheses(*map(take, hypotheses))


def _best(in_beam: Bool[Array, "B K"], *groups: Hypotheses) -> Hypotheses:
    """As many of all hypotheses as the beam has room for, those with the highest scores first."""
    together = Hypotheses(*(jnp.concatenate(parts, axis=1) for parts in zip(*groups, strict=True)))
    scores, chosen = jax.lax.top_k(together.scores, in_beam.shape[1])
    return _choose(together, chosen)._replace(scores=jnp.where(in_beam, scores, -jnp.inf))


def _follow(caches: tuple[KeyValues, ...], beams: Int[Array, "B K"]) -> tuple[KeyValues, ...]:
    """The caches of the hypotheses that were extended, in the order of their extensions."""
    batch, num_beams = beams.shape
    rows = (jnp.arange(batch)[:, None] * num_beams + beams).ravel()
    return jax.tree.map(lambda values: values[rows], caches)

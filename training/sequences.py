"""What recipes share that turn one sequence into another: batches, objective, error rates.

A batch is ragged on both sides: sources and targets are padded to the step's longest length, and
their lengths say what is real.

Axis letters: B batch, T target position, S source position.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from models.beam_search import beam_search
from models.decoding import Decoded, cross_attention, decode
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.packed_encoder_decoder import pack
from training.step import Batch, Objective, counted, jitted, token_losses

DECODING_BATCH = 256


def pad(rows: Sequence[np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    """``rows`` (B, ``size``) padded with zeros, and their lengths (B,)."""
    padded = np.zeros((len(rows), size), np.int32)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded, np.array([len(row) for row in rows], np.int32)


def make_batch(
    config: EncoderDecoderConfig,
    source: np.ndarray,
    source_lengths: np.ndarray,
    target: np.ndarray,
    target_lengths: np.ndarray,
) -> Batch:
    """A batch that asks for ``target`` (B, T), ended by ``eos_id`` where the model has one.

    There must be room for the end: a target is at most T - 1 long then.
    """
    if config.eos_id is not None:
        target = target.copy()
        target[np.arange(len(target)), target_lengths] = config.eos_id
        target_lengths = target_lengths + 1
    bos = np.full((len(target), 1), config.bos_id, np.int32)
    return {
        "source": source,
        "lengths": source_lengths,
        "inputs": np.concatenate([bos, target[:, :-1]], axis=1),
        "targets": target,
        "target_lengths": target_lengths,
    }


def sequence_loss(model: EncoderDecoder, batch: dict[str, Array]) -> Objective:
    """Cross-entropy over the real positions of the targets, in nats."""
    targets, lengths = batch["targets"], batch["target_lengths"]
    packed = pack(model)
    memories = packed.encode(batch["source"], batch["lengths"])
    logits, _ = packed.read_target(memories, batch["lengths"], batch["inputs"], lengths)
    losses = token_losses(logits, targets)
    real = jnp.arange(targets.shape[1])[None] < lengths[:, None]
    return counted(losses, real.astype(losses.dtype))


def decode_with_attention(
    model: EncoderDecoder, source: Array, lengths: Array
) -> tuple[Decoded, Array]:
    """What the model makes of ``source`` greedily, and where it looked (B, layers, heads, T, S)."""
    decoded = decode(model, source, lengths, _limits(model, lengths))
    return decoded, cross_attention(model, source, lengths, decoded.tokens, decoded.lengths)


def decode_all(
    model: EncoderDecoder, sources: Sequence[np.ndarray], *, num_beams: int = 1
) -> list[np.ndarray]:
    """The most probable target of every source, by beam search where there are several beams."""
    run = jitted(model, partial(_decode, num_beams=num_beams))
    outputs: list[np.ndarray] = [np.empty(0, np.int32)] * len(sources)
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    for first in range(0, len(order), DECODING_BATCH):
        part = order[first : first + DECODING_BATCH]
        size = _rounded(len(sources[part[-1]]), model.config.max_source_len)
        # Missing rows are sources of one symbol, so that the last batch has the shape of the rest.
        rows = [sources[index] for index in part]
        rows += [np.zeros(1, np.int32)] * (DECODING_BATCH - len(rows))
        tokens, lengths = map(np.asarray, run(*pad(rows, size)))
        for index, row, length in zip(part, tokens, lengths, strict=False):
            outputs[index] = row[:length]
    return outputs


def _decode(
    model: EncoderDecoder, source: Array, lengths: Array, *, num_beams: int
) -> tuple[Array, Array]:
    limits = _limits(model, lengths)
    if num_beams == 1:
        decoded = decode(model, source, lengths, limits)
        return decoded.tokens, decoded.lengths
    beams = jnp.full(lengths.shape, num_beams)
    found = beam_search(model, source, lengths, limits, beams, num_beams)
    return found.tokens[:, 0], found.lengths[:, 0]


def _limits(model: EncoderDecoder, lengths: Array) -> Array:
    """The most tokens of each target; where nothing marks an end, as many as its source has."""
    if model.config.eos_id is None:
        return lengths
    return jnp.full(lengths.shape, model.config.max_target_len)


def _rounded(length: int, longest: int) -> int:
    """``length`` rounded up to a power of two, at most ``longest``, so that shapes are few."""
    return min(1 << (length - 1).bit_length(), longest)


def error_rates(
    outputs: Sequence[np.ndarray], references: Sequence[Sequence[np.ndarray]]
) -> dict[str, Any]:
    """How far outputs are from the nearest of their references.

    ``sequence_error_rate`` is the share of outputs that are none of their references;
    ``symbol_error_rate`` is the sum of edit distances over the sum of the references' lengths.
    """
    distances, lengths = [], []
    for output, wanted in zip(outputs, references, strict=True):
        found = [(edit_distance(output, reference), len(reference)) for reference in wanted]
        distance, length = min(found)
        distances.append(distance)
        lengths.append(length)
    wrong = np.array(distances) > 0
    return {
        "sequence_error_rate": float(wrong.mean()),
        "symbol_error_rate": float(sum(distances) / sum(lengths)),
    }


def edit_distance(first: np.ndarray, second: np.ndarray) -> int:
    """The fewest symbols to insert, delete or replace to make one of the other (Levenshtein)."""
    if np.array_equal(first, second):
        return 0
    row = list(range(len(second) + 1))
    for index, symbol in enumerate(first.tolist(), 1):
        diagonal, row[0] = row[0], index
        for column, other in enumerate(second.tolist(), 1):
            diagonal, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, diagonal + (symbol != other)),
            )
    return row[-1]

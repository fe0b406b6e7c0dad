"""What reading N vectors costs: a Perceiver against self-attention over all of them.

The same two blocks either think in M latents that read the input once, at O(MN), or run over the
input itself, at O(N^2).
Source: Dive into Deep Learning (2026), "Encoders, Decoders, and Cross-Attention".
"""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from tqdm import tqdm

from models.blocks import TransformerBlock
from models.perceiver import PerceiverConfig, PerceiverEncoder
from training.step import jitted

NUM_REPEATS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CostCurve:
    """Median times in milliseconds by input length, and the power of N by which each grows."""

    lengths: tuple[int, ...]
    self_attention_ms: tuple[float, ...]
    perceiver_ms: tuple[float, ...]
    self_attention_exponent: float
    perceiver_exponent: float

    @property
    def ratios(self) -> tuple[float, ...]:
        """How many times faster the Perceiver reads, by length."""
        pairs = zip(self.self_attention_ms, self.perceiver_ms, strict=True)
        return tuple(full / read for full, read in pairs)

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` takes, with the ratios beside it."""
        fields = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }
        return {**fields, "ratios": list(self.ratios)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "CostCurve":
        """The curve that ``to_json`` wrote."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in data.items()
            if key != "ratios"
        }
        return cls(**fields)

    def table(self) -> str:
        """The curve as lines of text."""
        lines = [f"{'N':>6} {'self-attention ms':>18} {'Perceiver ms':>13} {'ratio':>7}"]
        rows = zip(
            self.lengths, self.self_attention_ms, self.perceiver_ms, self.ratios, strict=True
        )
        lines += [f"{n:6d} {full:18.2f} {read:13.2f} {ratio:7.1f}" for n, full, read, ratio in rows]
        lines.append(
            f"grows as N^{self.self_attention_exponent:.2f} against N^{self.perceiver_exponent:.2f}"
        )
        return "\n".join(lines)


class SelfAttentionEncoder(nnx.Module):
    """The blocks of a Perceiver, run over the whole input instead of over latents."""

    def __init__(self, config: PerceiverConfig, *, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List(
            [TransformerBlock(config.block, rngs=rngs) for _ in range(config.num_layers)]
        )

    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """Lets every input read every other."""
        everything = jnp.ones((1, 1, x.shape[1]), dtype=bool)
        for block in self.blocks:
            x = block(x, block.project(x), everything).x
        return x


def measure_cost(config: PerceiverConfig, lengths: tuple[int, ...]) -> CostCurve:
    """Times both encoders on this machine at every one of ``lengths``, one row at a time.

    The two take turns, so that both see the same machine; medians are of five runs each, after
    one that compiles.
    """
    rngs = nnx.Rngs(0)
    full = jitted(SelfAttentionEncoder(config, rngs=rngs), SelfAttentionEncoder.__call__)
    read = jitted(PerceiverEncoder(config, rngs=rngs), _read_all)
    columns: tuple[list[float], list[float]] = ([], [])
    for length in tqdm(lengths, desc="cost curve", unit="length"):
        inputs = np.random.default_rng(length).normal(size=(1, length, config.embed_dim))
        inputs = jnp.asarray(inputs, jnp.float32)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(NUM_REPEATS + 1):
            for function, kept in zip((full, read), times, strict=True):
                start = time.perf_counter()
                jax.block_until_ready(function(inputs))
                kept.append(1000 * (time.perf_counter() - start))
        for column, kept in zip(columns, times, strict=True):
            column.append(statistics.median(kept[1:]))
    return CostCurve(
        lengths=tuple(lengths),
        self_attention_ms=tuple(columns[0]),
        perceiver_ms=tuple(columns[1]),
        self_attention_exponent=growth_exponent(lengths, columns[0]),
        perceiver_exponent=growth_exponent(lengths, columns[1]),
    )


def _read_all(encoder: PerceiverEncoder, inputs: Float[Array, "B S D"]) -> Float[Array, "B M D"]:
    return encoder(inputs, jnp.ones((inputs.shape[0], 1, inputs.shape[1]), dtype=bool)).latents


def growth_exponent(lengths: tuple[int, ...], times_ms: list[float]) -> float:
    """The power p of the curve c N^p that fits best on logarithmic axes."""
    return float(np.polyfit(np.log(lengths), np.log(times_ms), 1)[0])

"""Pictures of what training and evaluation found, as PNG files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.cost_curve import CostCurve

WIDTH_IN, HEIGHT_IN, DPI = 6.4, 4.0, 110
SMOOTHING_STEPS = 50


@contextmanager
def canvas(path: Path, columns: int = 1) -> Iterator[list[Axes]]:
    """Axes side by side, saved to ``path`` at the end."""
    figure = Figure(figsize=(WIDTH_IN if columns == 1 else 2.6 * columns, HEIGHT_IN), dpi=DPI)
    yield list(figure.subplots(1, columns, squeeze=False)[0])
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def loss_curve(path: Path, losses: list[float]) -> None:
    """Training loss by step, each and smoothed."""
    width = min(SMOOTHING_STEPS, len(losses))
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    with canvas(path) as (axes,):
        axes.plot(np.arange(1, len(losses) + 1), losses, color="0.8", linewidth=0.8, label="step")
        axes.plot(np.arange(width, len(losses) + 1), smooth, label=f"mean of {width}")
        axes.set(xlabel="step", ylabel="loss (nats)", title="Training loss")
        axes.set_ylim(bottom=0)
        axes.legend()


def loss_by_position(path: Path, curves: dict[str, list[float]], unigram_entropy: float) -> None:
    """Validation loss at every position of the window."""
    with canvas(path) as (axes,):
        for label, curve in curves.items():
            axes.plot(curve, label=label)
        axes.axhline(unigram_entropy, color="0.6", linestyle="--", label="unigram entropy")
        axes.set(xlabel="position", ylabel="loss (nats)", title="Validation loss by position")
        axes.set_ylim(bottom=0)
        axes.legend()


def loss_by_length(path: Path, losses: dict[str, float], unigram_entropy: float) -> None:
    """Loss at one masked character of a window, by the length of the window."""
    lengths = [int(length) for length in losses]
    with canvas(path) as (axes,):
        axes.plot(lengths, list(losses.values()), marker="o", label="one masked character")
        axes.axhline(unigram_entropy, color="0.6", linestyle="--", label="unigram entropy")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set(xlabel="length of the window", ylabel="loss (nats)", title="Loss by length")
        axes.set_ylim(bottom=0)
        axes.legend()


def alignment(path: Path, maps: np.ndarray, source: Sequence[str], target: Sequence[str]) -> None:
    """Cross-attention (heads, target, source) of one source: every head, then their mean."""
    titles = [f"head {head}" for head in range(len(maps))] + ["mean"]
    with canvas(path, columns=len(titles)) as panels:
        for axes, title, weights in zip(panels, titles, [*maps, maps.mean(axis=0)], strict=True):
            axes.imshow(weights, cmap="viridis", vmin=0, vmax=1)
            axes.set_xticks(range(len(source)), list(source), fontsize=7)
            axes.set_yticks(range(len(target)), list(target), fontsize=7)
            axes.set_title(title)
        panels[0].set(xlabel="source", ylabel="target")


def by_length(path: Path, figures: dict[str, dict[str, float]]) -> None:
    """How well strings of each length are reversed, and how well the attention shows it."""
    lengths = [int(length) for length in figures]
    with canvas(path) as (axes,):
        for name in ("exact_match", "argmax_rate", "mean_weight"):
            values = [figure[name] for figure in figures.values()]
            axes.plot(lengths, values, marker="o", label=name.replace("_", " "))
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths], fontsize=7)
        axes.set(xlabel="length", ylim=(0, 1.02), title="Reversal by length")
        axes.legend()


def errors_by_length(path: Path, figures: dict[str, dict[str, float | int]]) -> None:
    """Error rates by the length of the source; bars say how many sources there are."""
    lengths = [int(length) for length in figures]
    with canvas(path) as (axes,):
        for name in ("sequence_error_rate", "symbol_error_rate"):
            values = [figure[name] for figure in figures.values()]
            axes.plot(lengths, values, marker="o", label=name.replace("_", " "))
        axes.set(xlabel="source length", ylim=(0, None), title="Errors by source length")
        axes.legend()
        counts = axes.twinx()
        counts.bar(lengths, [f["num_sources"] for f in figures.values()], color="0.85", zorder=0)
        counts.set_ylabel("sources")
        axes.set_zorder(counts.get_zorder() + 1)
        axes.set_frame_on(False)


def fidelity(path: Path, shares: dict[str, dict[str, float]], most_frequent: float) -> None:
    """Share of characters read back by input length, visible and hidden ones apart."""
    lengths = [int(length) for length in shares]
    with canvas(path) as (axes,):
        for kind in ("visible", "hidden"):
            axes.plot(lengths, [share[kind] for share in shares.values()], marker="o", label=kind)
        axes.axhline(most_frequent, color="0.6", linestyle="--", label="always the commonest")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set(xlabel="input length N", ylabel="share read back", ylim=(0, 1.02))
        axes.set_title("What the latents kept")
        axes.legend()


def cost_curve(path: Path, curve: CostCurve) -> None:
    """Time to read N vectors, Perceiver against self-attention, on logarithmic axes."""
    with canvas(path) as (axes,):
        for label, times_ms, exponent in (
            ("self-attention", curve.self_attention_ms, curve.self_attention_exponent),
            ("Perceiver", curve.perceiver_ms, curve.perceiver_exponent),
        ):
            axes.plot(curve.lengths, times_ms, marker="o", label=f"{label}, N^{exponent:.2f}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(curve.lengths, [str(length) for length in curve.lengths])
        axes.set(xlabel="input length N", ylabel="time (ms)", title="Cost of reading N vectors")
        axes.legend()

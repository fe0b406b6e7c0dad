"""Pictures of measurements, as SVG; each function draws one and gives its title."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import report
from benchmarks.serving.tables import best_rate

WIDTH_IN, HEIGHT_IN = 9.0, 4.0
# Equal results give equal files.
DETERMINED = {"svg.hashsalt": "triwire", "svg.fonttype": "path"}

# A server that answers nothing is as slow as that.
SLOWEST_PER_S = 1e-3

Results = Mapping[str, Any]


@contextmanager
def canvas(path: Path, columns: int) -> Iterator[list[Axes]]:
    """Axes side by side, saved to ``path`` at the end."""
    with mpl.rc_context(DETERMINED):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN))
        yield list(figure.subplots(1, columns, squeeze=False)[0])
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def forward(path: Path, results: Results) -> str:
    """Rows a second of every contestant by batch, for both kinds of work."""
    titles = {"whole": "all logits", "fill-mask": "token ids to top 5 at one mask"}
    with canvas(path, 2) as axes:
        for place, (work, title) in zip(axes, titles.items(), strict=True):
            found = [one for one in results["work"] if one["work"] == work]
            labels = [f"B {one['batch']}" for one in found]
            scale = [one["batch"] * 1e3 for one in found]
            _bars(place, labels, [one["contestants"] for one in found], scale)
            place.set(ylabel="rows a second", title=title)
    return "Rows a second through the encoder, by batch and contestant"


def decode(path: Path, results: Results) -> str:
    """Sequences a second of every contestant, by tokens and batch."""
    found = results["work"]
    with canvas(path, 1) as (axes,):
        labels = [f"{one['length']} tokens, B {one['batch']}" for one in found]
        _bars(axes, labels, [one["contestants"] for one in found], [1e3] * len(found))
        axes.set_yscale("log")
        axes.set(ylabel="sequences a second", title="Greedy decoding")
    return "Sequences a second decoded, by length, batch and contestant"


def latents(path: Path, results: Results) -> str:
    """Time and memory of every contestant by length of the input, on logarithmic axes."""
    with canvas(path, 2) as (times, memory):
        for name, exponents in results["exponents"].items():
            able = [one for one in results["work"] if name in one["contestants"]]
            lengths = [one["length"] for one in able]
            medians = [one["contestants"][name]["median"] for one in able]
            power = exponents["long"] if exponents["long"] is not None else exponents["all"]
            grown = "" if power is None else f", N^{power:.2f}"
            times.plot(lengths, medians, marker="o", label=name + grown)
            memory.plot(lengths, [one["memory_mib"][name] for one in able], marker="o")
        for axes, unit in ((times, "milliseconds"), (memory, "MiB beyond what was held")):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set(xlabel="input vectors N", ylabel=unit)
            axes.grid(visible=True, alpha=0.3)
        times.legend(fontsize="small")
    return "Time and memory of reading N vectors, on logarithmic axes"


def serve(path: Path, results: Results) -> str:
    """Requests a second of every server and of the model alone, by connections."""
    rounds = {name: found for name, found in results["results"].items() if found}
    with canvas(path, 1) as (axes,):
        labels = [f"c {connections}" for connections in results["connections"]]
        groups = [
            {name: _seconds_each(found, connections) for name, found in rounds.items()}
            for connections in results["connections"]
        ]
        _bars(axes, labels, groups, [1.0] * len(groups))
        axes.set_yscale("log")
        axes.set(ylabel="requests a second", xlabel="connections")
    return "Requests a second of every server, by connections, on a logarithmic axis"


def _seconds_each(rounds: Sequence[Mapping[str, Any]], connections: int) -> dict[str, float]:
    """The time that a request takes of a server that is never idle, or a row of the model."""
    rates = [
        best_rate(one["rates"], connections)
        if "rates" in one
        else one["loads"][str(connections)]["per_s"]
        for one in rounds
    ]
    return report.summary([1 / max(rate, SLOWEST_PER_S) for rate in rates])


def _bars(
    axes: Axes,
    labels: Sequence[str],
    contestants: Sequence[Mapping[str, Mapping[str, float]]],
    scale: Sequence[float],
) -> None:
    """A group of bars for each label: scale over the median, with quartiles."""
    names = list(contestants[0])
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        times = [found[name] for found in contestants]
        heights, lows, highs = (
            np.array([s / time[key] for s, time in zip(scale, times, strict=True)])
            for key in ("median", "q3", "q1")
        )
        places = np.arange(len(labels)) + (index - (len(names) - 1) / 2) * width
        spread = np.clip([heights - lows, highs - heights], 0, None)
        axes.bar(places, heights, width, yerr=spread, label=name, error_kw={"linewidth": 0.8})
    axes.set_xticks(np.arange(len(labels)), labels)
    axes.legend(fontsize="small")


PLOTS: Mapping[str, Callable[[Path, Results], str]] = {
    "forward": forward,
    "decode": decode,
    "latents": latents,
    "serve": serve,
}

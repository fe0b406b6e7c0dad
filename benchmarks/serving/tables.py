"""What was measured, in tables: medians over rounds, with the least and the most of them."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import report

OURS = "triwire"
Rounds = Sequence[Mapping[str, Any]]


def best_rate(rates: Mapping[str, float], connections: int) -> float:
    """The most rows a second in any form of call that so many requests under way can fill."""
    return max(rate for form, rate in rates.items() if _rows(form) <= connections)


def ceiling(model: Rounds, connections: int) -> float:
    """The median over rounds of what the model alone does with so many rows under way."""
    return statistics.median(best_rate(one["rates"], connections) for one in model)


def _rows(form: str) -> int:
    batch, threads = map(int, form.split("x"))
    return batch * threads


def tables(results: Mapping[str, Rounds], connections: Sequence[int]) -> str:
    """Load by load, then what a server costs."""
    servers = {name: rounds for name, rounds in results.items() if name != "model" and rounds}
    parts = [_rates(servers, results["model"], connections), _costs(servers, results["model"])]
    if OURS in servers:
        parts.append(_ours(servers, results["model"], connections))
    if silent := [name for name, rounds in results.items() if not rounds]:
        parts.append(f"Did not come to answer: {', '.join(silent)}.")
    return "\n\n".join(parts)


def _rates(servers: Mapping[str, Rounds], model: Rounds, connections: Sequence[int]) -> str:
    header = ["requests/s, p50 / p99 in ms", *(f"c {c}" for c in connections), "errors"]
    rows: list[list[Any]] = [
        ["model alone", *(f"{ceiling(model, c):.0f}" for c in connections), ""]
    ]
    for name, rounds in servers.items():
        loads = [[one["loads"][str(c)] for one in rounds] for c in connections]
        errors = sum(load["num_errors"] for one in loads for load in one)
        rows.append([name, *map(_load, loads), errors])
    return report.table(header, rows)


def _ours(servers: Mapping[str, Rounds], model: Rounds, connections: Sequence[int]) -> str:
    """How ours compares, round by round: with the model alone, and with the fastest peers."""
    header = ["ours", *(f"c {c}" for c in connections)]
    own = servers[OURS]
    model_rates = {c: [best_rate(one["rates"], c) for one in model] for c in connections}
    share = [_ratio(_per_s(own, c), model_rates[c]) for c in connections]
    rows: list[list[Any]] = [["of the model alone", *(f"{ratio:.0%}" for ratio in share)]]
    for workers in (1, 2):
        peers = [rounds for name, rounds in servers.items() if name.endswith(f" x{workers}")]
        if peers:
            fastest = [
                min(_ratio(_per_s(own, c), _per_s(peer, c)) for peer in peers) for c in connections
            ]
            told = "one worker" if workers == 1 else f"{workers} workers"
            rows.append([f"times the fastest peer, {told}", *(f"{x:.2f}" for x in fastest)])
    tails = [
        _ratio(*([one["loads"][str(c)][p] or 0 for one in own] for p in ("p99_ms", "p50_ms")))
        for c in connections
    ]
    rows.append(["p99 / p50", *(f"{tail:.2f}" for tail in tails)])
    return report.table(header, rows)


def _per_s(rounds: Rounds, connections: int) -> list[float]:
    return [one["loads"][str(connections)]["per_s"] for one in rounds]


def _ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """The median over rounds of one over the other; infinite where the other is 0."""
    pairs = zip(ours, others, strict=True)
    return statistics.median(own / other if other else float("inf") for own, other in pairs)


def _load(rounds: Rounds) -> str:
    rates = [one["per_s"] for one in rounds]
    p50, p99 = (_median(rounds, name) for name in ("p50_ms", "p99_ms"))
    spread = f"{min(rates):.0f}-{max(rates):.0f}"
    return f"{statistics.median(rates):.0f} ({spread}), {p50:.3g} / {p99:.3g}"


def _costs(servers: Mapping[str, Rounds], model: Rounds) -> str:
    alone_ms = _median(model, "paused_ms")
    header = [
        *("server", "start (s)", "memory (MiB)", "CPU when idle"),
        *("idle, a request (ms)", "beyond the model (ms)", "client (us a request)"),
    ]
    rows = []
    for name, rounds in servers.items():
        paused_ms = _median([one["paused"] for one in rounds], "p50_ms")
        client_us = _median(
            [one["loads"][max(one["loads"], key=int)] for one in rounds], "client_cpu_us"
        )
        rows.append(
            [
                name,
                *(_median(rounds, field) for field in ("start_s", "held_mib")),
                f"{_median(rounds, 'idle_cpu_share'):.1%}",
                paused_ms,
                # The model alone was measured in float32.
                paused_ms - alone_ms if report.width_of(name) == "float32" else "",
                client_us,
            ]
        )
    return report.table(header, rows)


def _median(rounds: Rounds, name: str) -> float:
    """The median over rounds; not a number where no round has one."""
    found = [one[name] for one in rounds if one[name] is not None]
    return statistics.median(found) if found else float("nan")

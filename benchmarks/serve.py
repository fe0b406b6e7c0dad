"""Requests a second and latencies of our service beside others that serve the same function.

    .venv/bin/python -m benchmarks.serve --out runs/benchmarks/serve.json

A request is a text of 64 characters with one mask, its answer the likeliest five symbols with their
probabilities; every answer is compared with what the model says of the text by itself. Beside the
peers stand the floor, which is uvicorn with an answer that it is given, and the model by itself,
which is our engine without HTTP, in float32. Ours and the fastest peer serve it in bfloat16 too,
with probabilities to 0.05. All servers are started first and stopped with SIGSTOP while it is not
their turn; who begins changes from round to round. Load goes to 127.0.0.1 alone.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.peers.processes import Contestant, Process
from benchmarks.serving import texts, trees
from benchmarks.serving.answers import NUM_CANDIDATES
from benchmarks.serving.contenders import CONTENDERS, Contender, locked_version
from benchmarks.serving.reference import probabilities
from benchmarks.serving.server import Server, StartError
from benchmarks.serving.tables import tables
from benchmarks.serving.texts import Wanted
from models.checkpoint import find_bundle

# How long nobody asks anything, to see what a server does then; and between two requests alone.
IDLE_S = 0.5
PAUSE_S = 0.02
LOAD = Contestant(name="load", module="benchmarks.serving.load")


def _answer_of_our_size(wanted: Wanted, text: str) -> dict[str, Any]:
    """What the floor answers: as many bytes as our service does."""
    best = sorted(wanted, key=lambda token: -wanted[token])[:NUM_CANDIDATES]
    candidates = [{"token": t, "token_id": i, "score": wanted[t]} for i, t in enumerate(best)]
    mask = {"index": 0, "position": 31, "char_start": 31, "char_end": 37, "window": [0, 64]}
    masks = [mask | {"entropy": sum(wanted.values()), "candidates": candidates}]
    results = [{"normalized": text, "masks": masks, "filled": text}]
    return {"model": "floor", "version": 1, "results": results, "usage": {"input_tokens": 64}}


def _bundle(checkpoints: Path, model: str) -> Path:
    """The directory of NAME, in its highest version, or of NAME/VERSION."""
    return checkpoints / model if "/" in model else find_bundle(checkpoints, model)


class Measurement:
    """What is measured of whom, and what came of it so far."""

    def __init__(self, options: argparse.Namespace, load: Process, ceiling: Process) -> None:
        self._options = options
        self._load = load
        self._ceiling = ceiling
        self._texts = texts.draw()
        self._bundle = _bundle(options.checkpoints, options.model)
        self._wanted = probabilities(self._bundle, self._texts)
        load.call("set_up")
        ceiling.call("set_up", bundle=str(self._bundle), texts=self._texts)
        self._shapes = ceiling.call("shapes")
        self._answer = json.dumps(_answer_of_our_size(self._wanted[0], self._texts[0]))
        self.results: dict[str, list[dict[str, Any]]] = {}

    def start(self, contender: Contender) -> Server | None:
        """Starts a server; one that does not come to answer is told of, and has no results.

        It starts twice, and the second time counts: what there is to compile is compiled by then.
        """
        self.results[contender.name] = []
        try:
            trees.end(Server(contender, self._bundle, self._answer).process)
            server = Server(contender, self._bundle, self._answer)
        except StartError as error:
            sys.stderr.write(f"{error}\n")
            return None
        sys.stderr.write(f"{contender.name}: ready after {server.start_s:.1f} s\n")
        return server

    def turn(self, server: Server) -> None:
        """Measures one server once, at every number of connections and after pauses."""
        with server.awake():
            cpu_s = trees.spent_s(server.process.pid)
            time.sleep(IDLE_S)
            idle_share = (trees.spent_s(server.process.pid) - cpu_s) / IDLE_S
            loads = {str(c): self._ask(server, c) for c in self._options.connections}
            paused = self._ask(server, 1, PAUSE_S)
            held_mib = trees.held_mib(server.process.pid)
        self.results[server.contender.name].append(
            {"start_s": server.start_s, "held_mib": held_mib, "idle_cpu_share": idle_share}
            | {"loads": loads, "paused": paused}
        )

    def _ask(self, server: Server, connections: int, pause_s: float = 0.0) -> dict[str, Any]:
        contender = server.contender
        return self._load.call(
            "measure",
            port=server.port,
            path=contender.path,
            bodies=[json.dumps(contender.request(text)) for text in self._texts],
            wanted=self._wanted,
            found=contender.found,
            tolerance=contender.tolerance,
            connections=connections,
            seconds=self._options.seconds,
            warm_s=self._options.warm_s,
            pause_s=pause_s,
            exact=self._answer,
        )

    def model_turn(self) -> None:
        """Measures the model by itself at every batch size, in one thread and in all."""
        threads = sorted({1, self._shapes["num_threads"]})
        forms = [(b, t) for b in self._shapes["batch_sizes"] for t in threads]
        seconds = self._options.seconds
        rates = {
            f"{b}x{t}": self._ceiling.call("rate", batch_size=b, num_threads=t, seconds=seconds)
            for b, t in forms
        }
        paused_ms = self._ceiling.call("pauses", pause_s=PAUSE_S, seconds=seconds)
        self.results.setdefault("model", []).append({"rates": rates, "paused_ms": paused_ms})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Starts all, measures them in rounds, and gives everything that was measured."""
    machine = report.machine("jax", "fastapi", "uvicorn", "httptools")
    peers = sorted({peer for name in options.servers if (peer := CONTENDERS[name].peer)})
    machine |= {peer: locked_version(peer) for peer in peers}
    ceiling = Contestant(name="ceiling", module="benchmarks.serving.ceiling")
    with contextlib.ExitStack() as stack:
        load, raw = Process(LOAD), Process(ceiling)
        stack.callback(load.close)
        stack.callback(raw.close)
        measurement = Measurement(options, load, raw)
        servers = []
        for name in options.servers:
            if server := measurement.start(CONTENDERS[name]):
                servers.append(server)
                stack.callback(trees.end, server.process)
        if not servers:
            raise SystemExit("expected at least one server that answers, got none")
        for index in range(options.rounds):
            measurement.model_turn()
            first = index % len(servers)
            for server in servers[first:] + servers[:first]:
                measurement.turn(server)
            sys.stderr.write(f"round {index + 1} of {options.rounds}\n")
    return {
        "machine": machine,
        "connections": options.connections,
        "results": measurement.results,
    }


def table(results: Mapping[str, Any]) -> str:
    """Rates and latencies by connections, what servers cost, and how ours compares."""
    return tables(results["results"], results["connections"])


def main() -> None:
    """Measures and tells."""
    options = parser().parse_args()
    if options.quick:
        options.seconds, options.warm_s, options.rounds = 0.5, 0.2, 2
    results = measure(options)
    report.write(options.out, results, table(results))
    if silent := [name for name, rounds in results["results"].items() if not rounds]:
        raise SystemExit(f"error: no measurement of {', '.join(silent)}; what went wrong is above")


def parser() -> argparse.ArgumentParser:
    """What can be chosen."""
    top = report.arguments(__doc__)
    top.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    top.add_argument("--model", default="masked-lm", help="NAME or NAME/VERSION")
    top.add_argument(
        "--servers", type=_servers, default=list(CONTENDERS), help=f"of {', '.join(CONTENDERS)}"
    )
    top.add_argument("--connections", type=_numbers, default=[1, 8, 32, 128])
    top.add_argument("--rounds", type=int, default=5)
    top.add_argument("--seconds", type=float, default=2.0, help="of every measurement")
    top.add_argument("--warm-s", type=float, default=0.5, help="before it, not counted")
    return top


def _servers(written: str) -> list[str]:
    names = [name.strip() for name in written.split(",")]
    if unknown := [name for name in names if name not in CONTENDERS]:
        raise argparse.ArgumentTypeError(
            f"expected names of {list(CONTENDERS)}, got {unknown[0]!r}"
        )
    return names


def _numbers(written: str) -> list[int]:
    return [int(number) for number in written.split(",")]


if __name__ == "__main__":
    main()

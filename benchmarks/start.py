"""How long the service takes until it is ready, what it holds then, and its first requests.

    .venv/bin/python -m benchmarks.start --starts 5 --out runs/benchmarks/start.json

The first start finds nothing compiled, the others what it left. Of all models that are there, one
of each wiring is started by itself as well. Each is a process of its own on a
free port of 127.0.0.1, with the bundles of ``--checkpoints``. Seconds on the clock and of the CPU
run from the start of the process to the first 200 of /readyz.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import report

REQUESTS = {
    "fill-mask": ("/v1/fill-mask", {"inputs": "the time trave<mask>ler"}),
    "decode": ("/v1/decode", {"inputs": "stressed"}),
    "latents": ("/v1/latents", {"inputs": "the time traveller", "encoding_format": "base64"}),
    "completions": ("/v1/completions", {"prompt": "the time ", "max_tokens": 8, "temperature": 0}),
}
# One of each wiring, of those that are shipped.
FOUR = "causal-lm,masked-lm,perceiver,reversal"
COLD, WARM, WARM_FOUR = "cold", "warm", "warm, four models"
NUM_MORE = 50
PATIENCE_S = 900.0
POLL_S = 0.05


@contextlib.contextmanager
def serving(checkpoints: Path, cache: Path, models: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The address of a service that is ready, and what that took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "service", "--port", str(port)]
    command += ["--checkpoints", str(checkpoints), "--compilation-cache", str(cache)]
    command += ["--shutdown-grace-s", "0", *(["--models", models] if models else [])]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(process, address)
        yield address, {"ready_s": time.monotonic() - began, **_spent(process.pid)}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def _wait(process: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    # One client, seldom asking: it has the same cores as what it waits for.
    with httpx2.Client(base_url=address, timeout=5) as client:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx2.TransportError):
                if client.get("/readyz").status_code == 200:
                    return
            time.sleep(POLL_S)
    raise SystemExit(f"expected a service that becomes ready, got status {process.poll()}")


def _spent(pid: int) -> dict[str, float]:
    """Seconds of the CPU and MiB of memory of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    resident = next(line for line in status if line.startswith("VmRSS"))
    return {
        "cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
        "resident_mib": int(resident.split()[1]) / 1024,
    }


def first_and_more(address: str) -> dict[str, dict[str, float]]:
    """Milliseconds of the first request of each kind, and of the median one after it."""
    found = {}
    with httpx2.Client(base_url=address) as client:
        client.get("/livez")
        for name, (path, body) in REQUESTS.items():
            taken = []
            for _ in range(1 + NUM_MORE):
                before = time.perf_counter()
                client.post(path, json=body).raise_for_status()
                taken.append((time.perf_counter() - before) * 1e3)
            found[name] = {"first_ms": taken[0], **report.summary(taken[1:])}
    return found


def measure(checkpoints: Path, models: str, num_starts: int) -> dict[str, Any]:
    """One cold start and ``num_starts`` warm ones of each kind, in turns."""
    starts = []
    chosen = {COLD: models, WARM: models} | ({} if models else {WARM_FOUR: FOUR})
    kinds = [COLD] + [kind for kind in chosen if kind != COLD] * num_starts
    with tempfile.TemporaryDirectory() as cache:
        for kind in kinds:
            with serving(checkpoints, Path(cache), chosen[kind]) as (address, spent):
                starts.append({"kind": kind, **spent, "requests": first_and_more(address)})
            sys.stderr.write(f"{kind}: {spent}\n")
    return {"machine": report.machine("jax", "fastapi", "uvicorn"), "starts": starts}


def main() -> None:
    """Measures and tells."""
    parser = report.arguments(__doc__)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--models", default="", help="those to serve, as the service takes them")
    parser.add_argument("--starts", type=int, default=5, help="warm ones (default: 5)")
    options = parser.parse_args()
    num_starts = 1 if options.quick else options.starts
    results = measure(options.checkpoints, options.models, num_starts)
    rows = []
    for kind in dict.fromkeys(start["kind"] for start in results["starts"]):
        starts = [start for start in results["starts"] if start["kind"] == kind]
        for name in ("ready_s", "cpu_s", "resident_mib"):
            found = report.summary([start[name] for start in starts])
            rows.append([kind, name, found["median"], found["q1"], found["q3"]])
        for task in REQUESTS:
            for name in ("first_ms", "median"):
                found = report.summary([start["requests"][task][name] for start in starts])
                told = f"{task}, {'first' if name == 'first_ms' else 'later'} request (ms)"
                rows.append([kind, told, found["median"], found["q1"], found["q3"]])
    told = report.table(["start", "what", "median", "first quartile", "third quartile"], rows)
    report.write(options.out, results, told)


if __name__ == "__main__":
    main()

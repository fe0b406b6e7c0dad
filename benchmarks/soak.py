"""Many clients at once for minutes: every answer must be right for its own request.

    .venv/bin/python -m service --port 8900 &
    .venv/bin/python -m benchmarks.soak --url http://127.0.0.1:8900 --clients 64 --seconds 600

Requests of every task, size and option are asked once each while nothing else is going on; under
load the same requests, in random order, must get the same answers, to rounding. In between come
requests that are wrong, which must be refused as they should be, clients that leave before their
answer or in the middle of a stream, and streams. The service itself tells its memory.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import math
import random
import string
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

# Batches of another size add up in another order.
TOLERANCE = 1e-4
TEXT = "the time traveller of it will be convenient to speak him was expounding a matter us"
WORDS = TEXT.split(" ")
# What differs from one answer to the next, and what only some of them carry.
VOLATILE = {"id", "created"}
BUSY = {429, 503, 504}
LEFT = "left early"


@dataclass
class Tally:
    """What has come of the requests."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """A request, the status it must get and, where that is 200, the answer."""

    path: str
    body: Any
    status: int = 200
    answer: Any = None


def draw_requests(random_: random.Random) -> list[Asked]:
    """Requests of every kind, right and wrong."""
    found = []
    for _ in range(40):
        words = [random_.choice(WORDS) for _ in range(random_.randint(1, 40))]
        text = " ".join(words)
        places = sorted(random_.sample(range(len(text)), min(len(text), random_.randint(1, 6))))
        masked = "".join("_" if i in places else symbol for i, symbol in enumerate(text))
        body = {"inputs": masked, "mask_token": "_", "top_k": random_.randint(1, 28)}
        found.append(Asked("/v1/fill-mask", body | {"evidence": random_.random() < 0.4}))
        source = "".join(random_.choices(string.ascii_letters + " .,", k=random_.randint(1, 128)))
        decode = {"model": "reversal", "inputs": source, "num_beams": random_.choice((1, 1, 1, 4))}
        if len(source) < 40 and random_.random() < 0.3:
            decode["attention"] = {"heads": "mean"}
        found.append(Asked("/v1/decode", decode))
        long = " ".join(random_.choices(WORDS, k=random_.choice((3, 30, 300))))
        latents = {
            "inputs": long,
            "encoding_format": "base64",
            "reconstruct": random_.random() < 0.5,
        }
        found.append(Asked("/v1/latents", latents))
        prompt = {"prompt": text[:60], "max_tokens": random_.randint(1, 40), "temperature": 0}
        found.append(Asked("/v1/completions", prompt))
        found.append(Asked("/v1/embeddings", {"model": "perceiver", "input": [text, long[:500]]}))
    wrong = [
        ("/v1/fill-mask", {"inputs": "no mask"}, 422),
        ("/v1/fill-mask", {"inputs": "a<mask>", "top_k": 0}, 422),
        ("/v1/decode", {"model": "reversal", "inputs": "ü"}, 422),
        ("/v1/decode", {"model": "nobody", "inputs": "a"}, 404),
        ("/v1/decode", {"inputs": "a", "unknown": 1}, 422),
        ("/v1/latents", {"features": [[1.0]]}, 422),
        ("/v1/completions", {"prompt": "a" * 9000}, 422),
        ("/v1/embeddings", {"model": "perceiver", "input": ""}, 422),
    ]
    return found + [Asked(*one) for one in wrong]


def differences(expected: Any, got: Any, path: str = "") -> str:
    """Where two answers differ by more than rounding; empty where they do not."""
    if isinstance(expected, dict) and isinstance(got, dict):
        names = [n for n in expected.keys() | got.keys() if n not in VOLATILE]
        pairs = ((n, expected.get(n), got.get(n)) for n in names)
        return next((d for n, a, b in pairs if (d := differences(a, b, f"{path}.{n}"))), "")
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        pairs = enumerate(zip(expected, got, strict=True))
        return next((d for i, (a, b) in pairs if (d := differences(a, b, f"{path}[{i}]"))), "")
    if isinstance(expected, float) and isinstance(got, float | int):
        close = math.isclose(expected, got, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return "" if close else f"{path}: {expected} became {got}"
    return (
        ""
        if expected == got or path.endswith(".latents")
        else f"{path}: {expected!r} became {got!r}"
    )


async def learn(client: httpx2.AsyncClient, asked: Asked) -> Asked:
    """The request with its answer, asked with nothing else going on."""
    response = await client.post(asked.path, json=asked.body)
    if response.status_code != asked.status:
        raise SystemExit(f"{asked.path} {asked.body}: {response.status_code} {response.text[:300]}")
    return Asked(
        asked.path, asked.body, asked.status, response.json() if asked.status == 200 else None
    )


async def ask(client: httpx2.AsyncClient, asked: Asked, tally: Tally) -> None:
    """Asks and compares."""
    started = time.monotonic()
    response = await client.post(asked.path, json=asked.body)
    tally.counts[str(response.status_code)] += 1
    if response.status_code in BUSY:
        await asyncio.sleep(float(response.headers.get("Retry-After", 0.1)))
        return
    if response.status_code != asked.status:
        tally.wrong.append(f"{asked.path}: {response.status_code} {response.text[:200]}")
        return
    if asked.status == 200:
        tally.seconds.append(time.monotonic() - started)
        if difference := differences(asked.answer, response.json()):
            tally.wrong.append(f"{asked.path} {difference}")


async def watch_stream(
    client: httpx2.AsyncClient, asked: Asked, tally: Tally, *, leaves: bool
) -> None:
    """Reads a stream to its end and compares, or leaves in the middle."""
    body = {k: v for k, v in asked.body.items() if k != "num_beams"} | {"stream": True}
    tokens: list[str] = []
    async with client.stream("POST", asked.path, json=body) as response:
        tally.counts[f"{response.status_code} stream"] += 1
        if response.status_code != 200:
            return
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                tally.counts[event["error"]["code"]] += 1
                return
            if "token" in event:
                tokens.append(event["token"])
            if leaves and len(tokens) > 2:
                tally.counts[LEFT] += 1
                return
    if "".join(tokens) != asked.answer["results"][0]["output"]:
        tally.wrong.append(f"stream of {body['inputs']!r} gave {''.join(tokens)!r}")


async def leave(client: httpx2.AsyncClient, asked: Asked, tally: Tally) -> None:
    """Asks and closes the connection before the answer."""
    with contextlib.suppress(httpx2.TimeoutException):
        await client.post(asked.path, json=asked.body, timeout=0.002)
    tally.counts[LEFT] += 1


async def one_client(
    url: str, requests: list[Asked], seed: int, until: float, tally: Tally
) -> None:
    """One client that asks until time is up."""
    random_ = random.Random(seed)
    streams = [one for one in requests if one.path == "/v1/decode" and one.answer]
    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
        while time.monotonic() < until:
            drawn = random_.random()
            try:
                if drawn < 0.05:
                    await leave(client, random_.choice(requests), tally)
                elif drawn < 0.15:
                    leaves = random_.random() < 0.5
                    await watch_stream(client, random_.choice(streams), tally, leaves=leaves)
                else:
                    await ask(client, random_.choice(requests), tally)
            except httpx2.TransportError as error:
                tally.wrong.append(f"{type(error).__name__}: {error}")


async def watch_memory(url: str, until: float, tally: Tally) -> None:
    """Notes the resident memory of the service, in MB, every ten seconds."""
    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
        while time.monotonic() < until:
            metrics = (await client.get("/metrics")).text
            for line in metrics.splitlines():
                if line.startswith("process_resident_memory_bytes"):
                    tally.memory.append(float(line.split()[1]) / 1e6)
            await asyncio.sleep(10)


async def soak(url: str, num_clients: int, seconds: float) -> dict[str, Any]:
    """Runs it all and gives the report."""
    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
        drawn = draw_requests(random.Random(0))
        requests = [await learn(client, asked) for asked in drawn]
    tally = Tally()
    until = time.monotonic() + seconds
    clients = [one_client(url, requests, seed, until, tally) for seed in range(num_clients)]
    await asyncio.gather(watch_memory(url, until, tally), *clients)
    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
        ready = (await client.get("/readyz")).status_code
        metrics = (await client.get("/metrics")).text
    after_ready = [
        x for x in metrics.splitlines() if x.startswith("triwire_compilations_after_ready_total")
    ]
    ordered = sorted(tally.seconds)
    quarter = max(len(tally.memory) // 4, 1)
    return {
        "answers": dict(sorted(tally.counts.items())),
        "compared": len(ordered),
        "wrong": len(tally.wrong),
        "first_wrong": tally.wrong[:5],
        "p50_ms": round(1000 * ordered[len(ordered) // 2], 1),
        "p99_ms": round(1000 * ordered[int(len(ordered) * 0.99)], 1),
        "memory_mb_first_quarter": round(sum(tally.memory[:quarter]) / quarter),
        "memory_mb_last_quarter": round(sum(tally.memory[-quarter:]) / quarter),
        "ready_afterwards": ready == 200,
        "compilations_after_ready": after_ready,
    }


def main() -> None:
    """Prints the report as JSON; exits with 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    report = asyncio.run(soak(options.url, options.clients, options.seconds))
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    sys.exit(1 if report["wrong"] or not report["ready_afterwards"] else 0)


if __name__ == "__main__":
    main()

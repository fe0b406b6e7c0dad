"""A long input of a Perceiver, read by several threads at once.

Every thread reads a part, as the latents would if there were no more; what they read is joined, and
the latents attend to each other once. Text is read back in parts as well, as no position needs
another there.
"""

from functools import partial
from typing import Any

import numpy as np

from models import packed_perceiver
from models.checkpoint import ModelCard
from models.packed_perceiver import PackedPerceiver, pack
from models.packed_reading import TILE, joined
from service.programs import Program, Ragged, Row, Share, Steps
from service.steps import as_it_is

# With fewer each, threads spend as much on what every part costs as one does on reading them.
SHORTEST_PART = 1024
JOINED = "latents+joined"
READING_BACK = "latents+part-of-reconstruction"


def name_of_part(ragged: Ragged) -> str:
    """The program that reads a part of such inputs."""
    return f"latents+part-of-{ragged.name}"


def share(program: str, ragged: Ragged, *, reads_back: bool = False) -> Share:
    """How threads share a row of ``program``, whose text is read back as well or not."""

    def steps(row: Row, num_threads: int) -> Steps:
        parts = parts_of(len(row[ragged.name]), num_threads)
        if len(parts) == 1:
            return as_it_is(program, row)
        return _steps(ragged, row[ragged.name], parts, reads_back=reads_back)

    return steps


def parts_of(size: int, num_threads: int) -> list[slice]:
    """An input of ``size`` in a part for every thread, or fewer; tiles stay whole."""
    count = max(1, min(num_threads, size // SHORTEST_PART))
    length = -(-size // (count * TILE)) * TILE
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]


def programs(card: ModelCard, raggeds: tuple[Ragged, Ragged]) -> list[Program]:
    """What parts of inputs run in, text first; none where no input is worth being shared."""
    longest = parts_of(card.limits["max_len"], 2)[0].stop
    if longest == card.limits["max_len"]:
        return []
    num_latents, width = card.config["num_latents"], card.config["embed_dim"]
    size = (("size", np.int32(1)),)
    text, vectors = raggeds

    def read(packed: PackedPerceiver, *arrays: Any) -> dict[str, Any]:
        return packed_perceiver.encode_part(packed, *arrays)._asdict()

    def finish(packed: PackedPerceiver, read: Any, _: Any, lengths: Any) -> dict[str, Any]:
        return {"latents": packed_perceiver.behind_reading(packed, read, lengths)}

    def read_back(packed: PackedPerceiver, *arrays: Any) -> dict[str, Any]:
        tokens, log_probs = packed_perceiver.read_back(packed, *arrays)
        return {"tokens": tokens, "log_probs": log_probs}

    # Tried out as all of an input: if that were of one symbol, most would lie far beyond its end.
    part = partial(
        Program,
        pack=pack,
        is_part=True,
        is_on_demand=True,
        grid=((1, longest),),
        trial={"size": np.int32(longest)},
    )
    reading = partial(part, function=read, scalars=(("start", np.int32(0)), *size))
    return [
        reading(name=name_of_part(text), ragged=text),
        reading(name=name_of_part(vectors), ragged=vectors),
        part(
            name=JOINED,
            function=finish,
            ragged=Ragged(name="read", dtype=np.float32, trailing=(width,)),
            scalars=size,
            grid=((1, num_latents),),
        ),
        part(
            name=READING_BACK,
            function=read_back,
            ragged=Ragged(name="positions", dtype=np.int32),
            scalars=size,
            arrays=lambda _: {"latents": np.zeros((num_latents, width), np.float32)},
        ),
    ]


def _steps(ragged: Ragged, values: np.ndarray, parts: list[slice], *, reads_back: bool) -> Steps:
    size = np.int32(len(values))
    found = yield [
        (
            name_of_part(ragged),
            {ragged.name: values[part], "start": np.int32(part.start), "size": size},
        )
        for part in parts
    ]
    sums = {key: np.stack([result[key] for result in found]) for key in found[0]}
    (result,) = yield [(JOINED, {"read": joined(**sums), "size": size})]
    if not reads_back:
        return result
    back = yield [
        (
            READING_BACK,
            {
                "positions": np.arange(part.start, part.stop, dtype=np.int32),
                "size": size,
                "latents": result["latents"],
            },
        )
        for part in parts
    ]
    lengths = [part.stop - part.start for part in parts]
    read_back = {
        key: np.concatenate([one[key][:length] for one, length in zip(back, lengths, strict=True)])
        for key in back[0]
    }
    return {**result, **read_back}

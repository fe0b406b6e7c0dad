"""Decode as a stream: a few tokens at a time from the same caches, and the whole answer at the end.

Between two parts the rows of a request are back with it, so they share batches with whatever other
requests are at that moment, and nothing more is computed once nobody reads on.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from service.batches import Ticket
from service.programs import Result
from service.schemas import DecodeRequest
from service.tasks.context import Context
from service.tasks.decode import DecodeAnswer, Job, finish, greedy, prepare


@dataclass(frozen=True, slots=True)
class StreamedToken:
    """Token ``position`` of what input ``index`` becomes, both counted from 0."""

    index: int
    position: int
    token: str
    logprob: float


Event = StreamedToken | DecodeAnswer


async def decode_stream(
    context: Context, request: DecodeRequest, ticket: Ticket
) -> AsyncGenerator[Event, None]:
    """Every token as it is decoded, then the answer that ``decode`` would give.

    Raises:
        InvalidInput: before the first event, if the request is not what the model takes.
    """
    job = await prepare(context, request)
    states = await context.run(job.model, "begin", job.rows, ticket)
    while running := [index for index, state in enumerate(states) if _is_running(state)]:
        rows = [{"source": job.rows[index]["source"], **states[index]} for index in running]
        parts = await context.run(job.model, "go on", rows, ticket)
        for index, part in zip(running, parts, strict=True):
            known = int(states[index]["lengths"])
            states[index] = part
            for event in _tokens(job, index, part, known):
                yield event
    yield await finish(context, job, [greedy(state) for state in states], ticket)


def _is_running(state: Result) -> bool:
    return not state["has_ended"] and bool(state["lengths"] < state["limits"])


def _tokens(job: Job, index: int, state: Result, known: int) -> list[StreamedToken]:
    """What is new in ``state`` beyond the first ``known`` tokens."""
    names = job.targets.tokens
    new = range(known, int(state["lengths"]))
    return [
        StreamedToken(index, at, names[state["tokens"][at]], float(state["log_probs"][at]))
        for at in new
    ]

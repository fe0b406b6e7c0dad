"""Rows that run by steps, because threads share them, among others that do not.

How rows are computed is for whoever asks for the steps: the service by its queue, a benchmark
without one.
"""

from collections.abc import Generator, Sequence
from itertools import islice

from service.programs import Asked, Result, Row, Steps


def as_it_is(program: str, row: Row) -> Steps:
    """The one step of a row that is not shared."""
    (result,) = yield [(program, row)]
    return result


def together(all_steps: Sequence[Steps]) -> Generator[Asked, list[Result], list[Result]]:
    """The steps of several rows side by side, and their results in order.

    What all of them ask for next is asked for at once.
    """
    results: list[Result] = [{}] * len(all_steps)
    asked = {index: next(steps) for index, steps in enumerate(all_steps)}
    while asked:
        found = iter((yield [row for rows in asked.values() for row in rows]))
        following: dict[int, Asked] = {}
        for index, rows in asked.items():
            try:
                following[index] = all_steps[index].send(list(islice(found, len(rows))))
            except StopIteration as end:
                results[index] = end.value
        asked = following
    return results

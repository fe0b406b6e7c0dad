import threading
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.ours.lanes import Lanes, at_lengths
from service.errors import NonFiniteOutput
from service.programs import Program, Ragged

PROGRAM = Program(
    name="double",
    function=lambda *_: {},
    ragged=Ragged(name="tokens", dtype=np.int32),
    grid=((1, 4), (4, 4), (1, 8), (4, 8), (1, 16)),
)


class Doubling:
    """An engine that doubles the first token of a row and notes what it is called with."""

    def __init__(self):
        self.programs = {"double": PROGRAM}
        self.calls = []
        self.meeting = threading.Barrier(2)

    def fit(self, name, bucket, num_rows):
        assert (name, bucket) == ("double", 8)
        return min(4, num_rows)

    def run(self, name, rows):
        self.calls.append(len(rows))
        if len(self.calls) <= 2:
            self.meeting.wait(timeout=20)
        if any(row["tokens"][0] < 0 for row in rows):
            raise ValueError("negative")
        return [{"doubled": 2 * row["tokens"][0]} for row in rows]


@pytest.fixture
def lanes(monkeypatch):
    monkeypatch.setattr("benchmarks.ours.lanes.device.num_calls", lambda device, wanted: 2)
    return Lanes(Doubling())


def rows(*firsts):
    return [{"tokens": np.array([first, 0, 0, 0, 0])} for first in firsts]


def test_calls_run_side_by_side_and_results_come_in_the_order_of_the_rows(lanes):
    outcomes = lanes.run("double", rows(*range(18)))
    assert [outcome["doubled"] for outcome in outcomes] == [2 * i for i in range(18)]
    assert sorted(lanes.engine.calls) == [2, 4, 4, 4, 4]


def test_rows_are_shared_out_evenly_where_one_call_could_hold_them(lanes):
    lanes.run("double", rows(1, 2, 3, 4))
    assert lanes.engine.calls == [2, 2]


def test_what_a_call_raises_is_raised(lanes):
    with pytest.raises(ValueError, match="negative"):
        lanes.run("double", rows(1, 2, 3, 4, 5, 6, 7, -1))


def share(row, num_threads):
    """Every token doubled by itself, and the sum of that doubled once more."""
    found = yield [("double", {"tokens": [token, 0, 0, 0, 0]}) for token in row["tokens"]]
    assert len(found) == num_threads
    total = sum(result["doubled"] for result in found)
    (result,) = yield [("double", {"tokens": [total, 0, 0, 0, 0]})]
    return result


def test_a_row_that_threads_can_share_is_shared(lanes):
    lanes.engine.programs["sum"] = replace(PROGRAM, name="sum", share=share)
    assert lanes.run_one("sum", {"tokens": [3, 4]}) == {"doubled": 28}
    assert lanes.engine.calls == [1, 1, 1]


def test_a_row_that_cannot_be_shared_is_one_call(lanes):
    lanes.engine.meeting = threading.Barrier(1)
    assert lanes.run_one("double", rows(5)[0]) == {"doubled": 10}


def test_a_row_without_a_result_is_an_error(lanes):
    lanes.engine.run = lambda name, rows: [NonFiniteOutput("double: doubled holds NaN")]
    with pytest.raises(NonFiniteOutput, match="holds NaN"):
        lanes.run_one("double", rows(5)[0])


def test_shapes_are_those_that_inputs_run_in():
    assert at_lengths(PROGRAM, [3, 12]) == ((1, 4), (4, 4), (1, 16))

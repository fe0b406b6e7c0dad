import pytest

from benchmarks import report


def test_a_summary_is_of_the_middle_and_what_lies_around_it():
    found = report.summary([5.0, 1.0, 2.0, 4.0, 3.0])
    assert found == {"median": 3.0, "min": 1.0, "q1": 1.5, "q3": 4.5, "count": 5}
    assert report.summary([7.0]) == {"median": 7.0, "min": 7.0, "q1": 7.0, "q3": 7.0, "count": 1}


def test_ours_is_compared_with_the_fastest_peer_of_the_same_round():
    """The machine is twice as slow in the second round, which says nothing about anybody."""
    taken = {
        "ours": [[1.0, 1.0, 9.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]],
        "fast": [[1.5], [3.0], [1.5]],
        "slow": [[2.0], [4.0], [1.4]],
    }
    found = report.compare(taken, "ours", ["fast", "slow"])
    assert found["fastest_peer"] == "fast"
    assert found["speed"]["median"] == found["speed"]["q1"] == found["speed"]["q3"] == 1.5
    assert found["contestants"]["ours"]["median"] == 1.0
    assert found["contestants"]["slow"]["least"] == 1.4


def test_ours_is_never_its_own_peer():
    taken = {"ours": [[1.0]], "ours, plain": [[1.2]], "peer": [[4.0]]}
    assert report.compare(taken, "ours", ["peer"])["speed"]["median"] == pytest.approx(4.0)


def test_in_half_the_width_ours_is_compared_with_the_fastest_in_any():
    taken = {
        "ours": [[4.0]],
        "ours bfloat16": [[2.0]],
        "fast": [[5.0]],
        "fast bfloat16": [[6.0]],
        "slow": [[9.0]],
        "slow bfloat16": [[3.0]],
    }
    found = report.compare_widths(taken, "ours", ["fast", "slow"])
    assert (found["fastest_peer"], found["speed"]["median"]) == ("fast", 1.25)
    narrow = found["narrow"]
    assert (narrow["fastest_peer"], narrow["speed"]["median"]) == ("slow bfloat16", 1.5)


@pytest.mark.parametrize(("name", "width"), [("ours", "float32"), ("ours bfloat16", "bfloat16")])
def test_a_name_says_in_what_its_contestant_multiplies(name, width):
    assert report.width_of(name) == width


def test_a_table_is_markdown_with_three_digits():
    told = report.table(["what", "ms"], [["a", 1.23456], ["b", 12345.6], ["c", 3]])
    assert told.splitlines() == [
        "| what | ms |",
        "| --- | --- |",
        "| a | 1.23 |",
        "| b | 12345.6 |",
        "| c | 3 |",
    ]

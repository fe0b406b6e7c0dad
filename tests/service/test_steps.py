import pytest

from service.steps import as_it_is, together


def counting_down(name, count):
    """Steps that ask for as many rows as are left, and end with all that was answered."""
    heard = []
    while count:
        heard += yield [(name, {"left": count, "index": index}) for index in range(count)]
        count -= 1
    return {"heard": heard}


def drive(steps):
    """What the steps end with, and what they asked for meanwhile; a row is answered by itself."""
    asked, rounds = next(steps), []
    while True:
        rounds.append(asked)
        try:
            asked = steps.send([{"answer": question} for question in asked])
        except StopIteration as end:
            return end.value, rounds


def test_a_row_that_is_not_shared_is_one_step():
    result, rounds = drive(as_it_is("program", {"row": 1}))
    assert rounds == [[("program", {"row": 1})]]
    assert result == {"answer": ("program", {"row": 1})}


def test_what_several_rows_need_next_is_asked_for_at_once_and_each_hears_its_own():
    steps = [counting_down("a", 3), as_it_is("b", {"row": 0}), counting_down("c", 1)]
    results, rounds = drive(together(steps))
    assert [[name for name, _ in asked] for asked in rounds] == [[*"aaabc"], [*"aa"], [*"a"]]
    assert [answer["answer"][0] for answer in results[0]["heard"]] == ["a"] * 6
    assert results[1] == {"answer": ("b", {"row": 0})}
    assert results[2]["heard"] == [{"answer": ("c", {"left": 1, "index": 0})}]


def test_the_results_of_no_rows_are_none():
    with pytest.raises(StopIteration) as end:
        next(together([]))
    assert end.value.value == []

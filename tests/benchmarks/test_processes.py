import pytest

from benchmarks.peers.processes import CallError, Contestant, running, take_turns

ECHO = Contestant(
    name="echo",
    module="tests.benchmarks.echo",
    environment={"ECHO": "from the environment"},
    setting={"size": 3},
)


@pytest.fixture(scope="module")
def echo():
    with running([ECHO]) as processes:
        yield processes["echo"]


def test_a_contestant_is_set_up_in_its_environment_and_answers_what_it_is_asked(echo):
    assert echo.call("say", what="ä") == ["ä", {"size": 3}, "from the environment"]


def test_a_call_that_raises_is_an_error_here_and_the_contestant_goes_on(echo):
    with pytest.raises(CallError, match=r"(?s)echo: fail: .*ValueError: as asked"):
        echo.call("fail")
    assert echo.call("say", what=1)[0] == 1


def test_a_contestant_that_ends_is_told_with_its_status():
    with running([ECHO]) as processes:
        for _ in range(2):
            with pytest.raises(CallError, match="echo: leave: the process ended with status 3"):
                processes["echo"].call("leave")


def test_the_memory_of_a_call_is_what_it_holds_beyond_what_was_there(echo):
    echo.call("grow", num_mib=60)
    assert 18 < echo.call("grow", num_mib=20) < 25


def test_warm_calls_are_made_and_not_counted(echo):
    assert echo.call("count_calls", num_calls=5, num_warm=2) == [7, 5]


def test_in_a_round_all_have_a_turn_and_another_begins_in_the_next():
    order = []

    def turn(name):
        order.append(name)
        return [float(len(order))]

    turns = {name: lambda name=name: turn(name) for name in "abc"}
    taken = take_turns(turns, num_rounds=3, pause_s=0)
    assert "".join(order) == "abcbcacab"
    assert taken == {"a": [[1.0], [6.0], [8.0]], "b": [[2.0], [4.0], [9.0]], "c": [[3], [5], [7]]}

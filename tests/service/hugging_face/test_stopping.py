"""Stops in a text that comes token by token, without a model."""

import itertools

import pytest

from service.tasks.hugging_face.stopping import Tail, find_stop, keep_until
from service.tasks.hugging_face.written import StreamDetails, StreamEvent, Token

END = Token(id=9, text="", logprob=None, special=True)
DETAILS = StreamDetails(finish_reason="length", generated_tokens=0, input_length=1, seed=None)


def token(text):
    return Token(id=ord(text[0]), text=text, logprob=-0.5, special=False)


def event(index, text):
    return StreamEvent(index=index, token=token(text), generated_text=None, details=None)


def run(texts, stops):
    """What is told at each token, and at the end; the tail, too."""
    tail = Tail(stops)
    told = []
    for index, text in enumerate(texts, start=1):
        told.append(tail.add(event(index, text)))
        if tail.has_stopped:
            break
    return told, tail.finish(DETAILS, prefix="", end=END), tail


def texts(events):
    return [event.token.text for event in events]


def test_without_stops_every_token_is_told_one_later_and_the_last_with_the_text():
    told, rest, tail = run("abcd", [])
    assert [texts(events) for events in told] == [[], ["a"], ["b"], ["c"]]
    assert texts(rest) == ["d"]
    assert (rest[-1].generated_text, rest[-1].details) == ("abcd", DETAILS)
    assert [event.index for event in (*itertools.chain(*told), *rest)] == [1, 2, 3, 4]
    assert tail.num_tokens == 4


def test_what_may_begin_a_stop_waits_until_it_is_known():
    told, rest, tail = run("xabyabc!", ["abc"])
    assert [texts(events) for events in told] == [[], [], [], ["x", "a", "b"], [], [], []]
    assert texts(rest) == ["y"]
    assert (tail.text, tail.num_tokens, tail.has_stopped) == ("xaby", 4, True)


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["cd"], "ab"),
        (["d", "bc"], "a"),
        (["bcd", "c"], "ab"),
        (["abcdefg", "e"], "abcd"),
        (["x"], "abcdef"),
        (["fg"], "abcdef"),
    ],
)
def test_a_stream_says_what_cutting_the_whole_text_would_give(stops, text):
    told, rest, tail = run("abcdef", stops)
    events = [*itertools.chain(*told), *rest]
    assert "".join(texts(events)) == text == rest[-1].generated_text
    assert tail.num_tokens == len(events)
    assert tail.has_stopped == (find_stop("abcdef", stops) is not None)
    assert [event.details for event in events[:-1]] == [None] * (len(events) - 1)


def test_every_stream_over_two_letters_equals_its_text_cut_at_the_stop():
    for letters in itertools.product("ab", repeat=5):
        for stops in (["a"], ["ab"], ["aa", "ba"], ["bab", "a"], ["abab", "bb"]):
            told, rest, tail = run(letters, stops)
            events = [*itertools.chain(*told), *rest]
            whole = "".join(letters)
            cut = whole[: find_stop(whole, stops)]
            assert "".join(texts(events)) == cut == tail.text
            assert tail.num_tokens == len(cut)
            assert len(events) == max(len(cut), 1)


def test_where_a_stop_takes_everything_its_first_token_is_told_without_text():
    told, rest, tail = run("abc", ["ab"])
    assert list(itertools.chain(*told)) == []
    (last,) = rest
    assert last.token == Token(id=ord("a"), text="", logprob=-0.5, special=True)
    assert (last.generated_text, tail.num_tokens) == ("", 0)


def test_where_nothing_was_written_the_end_is_told():
    (last,) = Tail([]).finish(DETAILS, prefix="prompt", end=END)
    assert (last.index, last.token, last.generated_text) == (1, END, "prompt")
    assert last.details == DETAILS


def test_a_stop_inside_a_token_cuts_it():
    told, rest, tail = run(["AE1", " B", " IY0"], ["Y"])
    assert texts([*itertools.chain(*told), *rest]) == ["AE1", " B", " I"]
    assert (tail.text, tail.num_tokens) == ("AE1 B I", 3)
    assert [t.text for t in keep_until([token("AE1"), token(" B")], 4)] == ["AE1", " "]


def test_of_several_stops_the_one_that_is_complete_first_counts():
    assert find_stop("abcd", ["d", "b", "z"]) == 1
    assert find_stop("abcd", ["bcd", "c"]) == 2
    assert find_stop("abcd", ["bc", "c"]) == 1
    assert find_stop("abcd", ["z"]) is None
    assert find_stop("abcd", []) is None

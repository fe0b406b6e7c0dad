from hypothesis import given
from hypothesis import strategies as st

from service.tasks.stops import Stop, StopSearch

# Few letters, so that beginnings and ends overlap.
strings = st.text("ab", min_size=1, max_size=6)


@given(text=st.text("ab", max_size=40), stops=st.lists(strings, max_size=4))
def test_after_every_character_it_is_known_what_is_complete_and_what_may_become_so(text, stops):
    search = StopSearch([Stop(stop) for stop in stops])
    for end in range(1, len(text) + 1):
        found = search.add(text[end - 1])
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        assert found == max(complete, default=None)
        if found is not None:
            return
        begun = [
            size
            for stop in stops
            for size in range(1, len(stop))
            if text[:end].endswith(stop[:size])
        ]
        assert search.num_open == max(begun, default=0)


def test_without_stops_nothing_is_found_or_held_back():
    search = StopSearch([])
    assert [search.add(character) for character in "text"] == [None] * 4
    assert search.num_open == 0


def test_a_long_stop_and_a_long_text_take_as_many_steps_as_characters():
    """Quadratic work would take minutes over these."""
    stop, text = "a" * 50_000 + "b", "a" * 200_000 + "b"
    search = StopSearch([Stop(stop)])
    found = [length for length in map(search.add, text) if length]
    assert found == [50_001]

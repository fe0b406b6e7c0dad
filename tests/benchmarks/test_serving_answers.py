import json

import pytest

from benchmarks.serving import texts
from benchmarks.serving.answers import fault
from benchmarks.serving.contenders import CONTENDERS, OURS, locked_version

WANTED = {"a": 0.4, "b": 0.2, "c": 0.1, "d": 0.1, "e": 0.09, "f": 0.06, "g": 0.05}
RIGHT = [("a", 0.4), ("b", 0.2), ("c", 0.1), ("d", 0.1), ("e", 0.09)]


def body(candidates):
    told = [{"token": token, "token_id": 0, "score": score} for token, score in candidates]
    return json.dumps({"results": [{"masks": [{"candidates": told}]}]}).encode()


def fault_of(candidates):
    return fault(body(candidates), OURS.found, WANTED)


def test_the_likeliest_five_with_their_scores_are_right():
    assert fault_of(RIGHT) == ""


def test_level_candidates_may_come_in_any_order_and_scores_are_rounded():
    assert fault_of([*RIGHT[:2], ("d", 0.10005), ("c", 0.1), RIGHT[4]]) == ""


@pytest.mark.parametrize(
    ("candidates", "told"),
    [
        (RIGHT[:4], "4 candidates"),
        ([*RIGHT[:4], ("e", 0.0902)], "another score"),
        ([*RIGHT[:4], ("x", 0.09)], "another score"),
        ([RIGHT[1], RIGHT[0], *RIGHT[2:]], "another order"),
        ([*RIGHT[:4], ("f", 0.06)], "a likelier one is missing"),
    ],
)
def test_what_is_wrong_with_candidates_is_told(candidates, told):
    assert fault_of(candidates) == told


def test_scores_may_be_off_by_what_is_granted_and_no_more():
    rounded = [("a", 0.37), ("c", 0.11), ("b", 0.155), ("d", 0.1), ("f", 0.07)]
    assert fault(body(rounded), OURS.found, WANTED, 0.05) == ""
    assert fault(body(rounded), OURS.found, WANTED, 0.02) == "another score"


@pytest.mark.parametrize("broken", [b"", b"[]", b'{"results": []}', b'{"results": {"0": 1}}'])
def test_an_answer_without_candidates_is_told_as_such(broken):
    assert fault(broken, OURS.found, WANTED).startswith("no candidates")


def test_texts_have_one_mask_and_as_many_characters_as_they_should():
    drawn = texts.draw()
    assert drawn == texts.draw()
    assert len(set(drawn)) == texts.NUM_TEXTS
    for text in drawn:
        left, right = text.split(texts.MASK)
        # The model takes off spaces at the ends, and one for several.
        assert " ".join(text.split()) == text
        assert len(left) + 1 + len(right) == texts.NUM_CHARACTERS


@pytest.mark.parametrize("name", CONTENDERS)
def test_the_text_is_in_the_request_of_every_contender(name):
    request = json.dumps(CONTENDERS[name].request("a <mask> z"))
    assert "a <mask> z" in request
    assert "{text}" not in request


@pytest.mark.parametrize("peer", sorted({c.peer for c in CONTENDERS.values() if c.peer}))
def test_the_version_of_every_peer_is_known(peer):
    assert locked_version(peer)[0].isdecimal()

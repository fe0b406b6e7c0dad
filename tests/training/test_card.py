import dataclasses

import pytest

from models.vocabulary import MASK, UNKNOWN, Vocabulary
from training.card import model_card


def alphabet_of(cards, characters):
    vocabulary = Vocabulary(symbols=(UNKNOWN, *characters), specials=(MASK,))
    card = dataclasses.replace(cards["masked-lm"], vocabulary=vocabulary)
    text = model_card(dataclasses.replace(card, recipe={"command": ""}), "", [])
    (line,) = [line for line in text.splitlines() if line.startswith("| alphabet")]
    return line


@pytest.mark.parametrize(
    ("characters", "shown"),
    [
        ("abé", "`abé` (3 characters)"),
        ("\n\tδ", "`\\n\\tδ` (3 characters)"),
        ("a|b", "`a\\|b` (3 characters)"),
        ("a`b", "``a`b`` (3 characters)"),
    ],
)
def test_an_alphabet_stays_one_cell_of_the_table(cards, characters, shown):
    assert alphabet_of(cards, characters) == f"| alphabet | {shown} |"


def test_a_very_long_alphabet_says_how_much_more_there_is(cards):
    characters = [chr(index) for index in range(0x4E00, 0x4E00 + 500)]
    line = alphabet_of(cards, characters)
    assert characters[199] in line
    assert characters[200] not in line
    assert line.endswith(" and 300 more in model.json (500 characters) |")

"""The requests of the comparison: texts of 64 characters with one mask, no two of them alike."""

import random
from collections.abc import Mapping

# What is wanted of a text: the probability of every symbol at its mask.
Wanted = Mapping[str, float]
NUM_TEXTS = 64
NUM_CHARACTERS = 64
MASK = "<mask>"
SENTENCE = (
    "the time traveller for so it will be convenient to speak of him was expounding a "
    "recondite matter to us his grey eyes shone and twinkled"
)


def draw(seed: int = 0) -> list[str]:
    """The texts; the mask stands for one of their characters."""
    random_ = random.Random(seed)
    return [_one(random_) for _ in range(NUM_TEXTS)]


def _one(random_: random.Random) -> str:
    text = " ".join(random_.choices(SENTENCE.split(), k=NUM_CHARACTERS))[:NUM_CHARACTERS]
    # A space at the end would be taken off.
    text = text if text[-1] != " " else text[:-1] + "s"
    place = random_.randrange(1, NUM_CHARACTERS - 1)
    return text[:place] + MASK + text[place + 1 :]

"""Error rates on held-out words: a bundle of ours beside the weights that the package g2p-en ships.

    .venv/bin/python -m training cmudict --out runs/cmudict.tsv
    .venv/bin/python -m pip download --no-deps --dest runs g2p-en==2.1.0
    .venv/bin/python -m benchmarks.pronunciation --pairs runs/cmudict.tsv \
        --g2p-en runs/g2p_en-2.1.0-py3-none-any.whl

Both read exactly the same words: those of the file that the bundle held out. g2p-en was trained on
the same dictionary with a split of its own, so most of these words it has seen. Its network (one
GRU layer on either side, no attention) is run here from its weights alone, because importing the
package fetches data from the network. A pronunciation is right if it is any of the dictionary's.
"""

import argparse
import io
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint import Bundle, find_bundle, load_model
from training.pairs import Line, is_held_out, read_pairs
from training.sequences import decode_all, error_rates

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
WEIGHTS = "g2p_en/checkpoint20.npz"
# The order of the rows of its embeddings, as the package documents it by its weights.
LETTERS = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
VOWELS = ["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]
CONSONANTS = [
    "B",
    "CH",
    "D",
    "DH",
    "F",
    "G",
    "HH",
    "JH",
    "K",
    "L",
    "M",
    "N",
    "NG",
    "P",
    "R",
    "S",
    "SH",
    "T",
    "TH",
    "V",
    "W",
    "Y",
    "Z",
    "ZH",
]
START, END, MAX_PHONEMES = 2, 3, 20

Phonemes = Sequence[str]


class RecurrentG2P:
    """The network of g2p-en: a GRU reads the letters, another writes phonemes, greedily."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            self.weights = dict(np.load(io.BytesIO(archive.read(WEIGHTS))))
        stressed = [f"{vowel}{stress}" for vowel in VOWELS for stress in range(3)]
        # Its table has the vowel UW without a stress as well.
        names = sorted([*stressed, *CONSONANTS, "UW"])
        self.phonemes = ["<pad>", "<unk>", "<s>", "</s>", *names]
        assert len(self.phonemes) == len(self.weights["dec_emb"]), "another version of g2p-en"

    def __call__(self, word: str) -> list[str]:
        """The phonemes of a word."""
        weights = self.weights
        known = {letter: index for index, letter in enumerate(LETTERS)}
        state = np.zeros(weights["enc_w_hh"].shape[1], np.float32)
        for letter in [*word, "</s>"]:
            inputs = weights["enc_emb"][known.get(letter, known["<unk>"])]
            state = self._step("enc", inputs, state)
        last, found = START, []
        while len(found) < MAX_PHONEMES:
            state = self._step("dec", weights["dec_emb"][last], state)
            last = int(np.argmax(weights["fc_w"] @ state + weights["fc_b"]))
            if last == END:
                break
            found.append(self.phonemes[last])
        return found

    def _step(self, side: str, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
        """A gated recurrent unit, Cho et al. (2014), arXiv:1406.1078; gates reset, update, new."""
        of_inputs = self.weights[f"{side}_w_ih"] @ inputs + self.weights[f"{side}_b_ih"]
        of_state = self.weights[f"{side}_w_hh"] @ state + self.weights[f"{side}_b_hh"]
        (reset_i, update_i, new_i), (reset_s, update_s, new_s) = (
            np.split(part, 3) for part in (of_inputs, of_state)
        )
        reset = 1 / (1 + np.exp(-(reset_i + reset_s)))
        update = 1 / (1 + np.exp(-(update_i + update_s)))
        return update * state + (1 - update) * np.tanh(new_i + reset * new_s)


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=Path, required=True, help="the file that was trained on")
    parser.add_argument("--g2p-en", type=Path, required=True, metavar="WHEEL")
    parser.add_argument("--name", default="pronunciation", help="of the bundle")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bundle = load_model(find_bundle(CHECKPOINTS, options.name))
    words = held_out_words(options.pairs, bundle)
    systems: dict[str, Callable[[list[str]], list[Phonemes]]] = {
        "g2p-en 2.1.0": lambda spelled: list(map(RecurrentG2P(options.g2p_en), spelled)),
        "ours, greedy": lambda spelled: transcribe(bundle, spelled, 1),
        "ours, beam 4": lambda spelled: transcribe(bundle, spelled, 4),
    }
    rows = {name: measure(system, words) for name, system in systems.items()}
    sys.stdout.write(json.dumps(rows) + "\n" if options.json else table(rows))


def held_out_words(path: Path, bundle: Bundle) -> dict[str, list[Phonemes]]:
    """The words that the bundle held out, with all their pronunciations."""
    file, corpus = read_pairs(path), bundle.card.corpus
    if file.sha256 != corpus["sha256"]:
        raise SystemExit(f"{path}: expected SHA-256 {corpus['sha256']}, got {file.sha256}")
    words: dict[str, list[Phonemes]] = {}
    held_out: list[Line] = [
        x for x in file.lines if is_held_out(x.source, corpus["held_out_share"])
    ]
    for line in held_out:
        words.setdefault(line.source, []).append(line.target.split(" "))
    return words


def transcribe(bundle: Bundle, words: list[str], num_beams: int) -> list[Phonemes]:
    """What a model of ours makes of words."""
    card = bundle.card
    assert card.target_vocabulary
    sources = [card.vocabulary.encode(word) for word in words]
    outputs = decode_all(bundle.model, sources, num_beams=num_beams)
    return [[card.target_vocabulary.tokens[i] for i in output] for output in outputs]


def measure(
    system: Callable[[list[str]], list[Phonemes]], words: dict[str, list[Phonemes]]
) -> dict[str, Any]:
    """Error rates over all words, and over those of letters alone, which g2p-en was made for."""
    spelled = list(words)
    ids: dict[str, int] = {}

    def encode(phonemes: Phonemes) -> np.ndarray:
        return np.array([ids.setdefault(name, len(ids)) for name in phonemes], np.int32)

    outputs = [encode(output) for output in system(spelled)]
    references = [[encode(wanted) for wanted in words[word]] for word in spelled]
    plain = [i for i, word in enumerate(spelled) if word.isascii() and word.isalpha()]
    return {
        "num_words": len(spelled),
        "all": error_rates(outputs, references),
        "num_plain": len(plain),
        "plain": error_rates([outputs[i] for i in plain], [references[i] for i in plain]),
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| system | words | word errors | phoneme errors |", "| --- | --- | --- | --- |"]
    for name, row in rows.items():
        for part, count in (("all", "num_words"), ("plain", "num_plain")):
            rates = row[part]
            lines.append(
                f"| {name}, {part} | {row[count]} | {rates['sequence_error_rate']:.2%} "
                f"| {rates['symbol_error_rate']:.2%} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

"""The commands for files of pairs: ``seq2seq``, ``cmudict``, and how ``evaluate`` reads pairs."""

import argparse
import re
import sys
from pathlib import Path

from models.checkpoint import Bundle, ModelCard
from models.encoder_decoder import EncoderDecoder
from training.cmudict import write_pairs
from training.pairs import (
    SIDES,
    PairsError,
    build_corpus,
    encode_pairs,
    is_held_out,
    read_pairs,
)
from training.recipe import Figures
from training.seq2seq import Seq2SeqRecipe, measure

COMMAND = "seq2seq"
PRESETS = ("default", "debug")
NAME = re.compile("[a-z0-9][a-z0-9._-]{0,63}")


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``seq2seq`` beside those that every training command has."""
    command.add_argument(
        "--pairs",
        type=Path,
        required=True,
        metavar="FILE.tsv",
        help="a source, a tab and its target on every line, in UTF-8",
    )
    command.add_argument(
        "--name",
        type=_name,
        required=True,
        dest="model_name",
        help="what the model will be called when served",
    )
    for side in ("source", "target"):
        command.add_argument(
            f"--{side}-symbols",
            choices=tuple(SIDES),
            default="characters",
            help=f"what a symbol of the {side} is: a character, or what stands between spaces",
        )
    command.add_argument(
        "--held-out",
        type=_share,
        default=0.1,
        metavar="SHARE",
        help="share of the sources that is kept for the evaluation, by a hash (default: 0.1)",
    )


def add_cmudict(command: argparse.ArgumentParser) -> None:
    """The options of ``cmudict``."""
    command.add_argument("--out", type=Path, default=Path("runs/cmudict.tsv"), help="the file")
    command.set_defaults(run=_write_cmudict)


def build(options: argparse.Namespace) -> Seq2SeqRecipe:
    """The recipe that the options of ``seq2seq`` ask for.

    Raises:
        PairsError: if the file is not what it should be.
    """
    corpus = build_corpus(
        read_pairs(options.pairs),
        source_symbols=options.source_symbols,
        target_symbols=options.target_symbols,
        held_out_share=options.held_out,
    )
    preset = Seq2SeqRecipe.default if options.preset == "default" else Seq2SeqRecipe.debug
    return preset(corpus, options.model_name)


def spelled(options: argparse.Namespace) -> str:
    """The options of ``seq2seq`` as one would type them, without the directory of the file."""
    words = [f"--pairs {options.pairs.name}", f"--name {options.model_name}"]
    for side in ("source", "target"):
        if (symbols := getattr(options, f"{side}_symbols")) != "characters":
            words.append(f"--{side}-symbols {symbols}")
    if options.held_out != 0.1:
        words.append(f"--held-out {options.held_out}")
    return " ".join(words)


def has_trained(card: ModelCard) -> bool:
    """Whether ``seq2seq`` has trained the model of that card."""
    return card.recipe.get("command", "").startswith(f"python -m training {COMMAND} ")


def evaluate(bundle: Bundle, pairs: Path | None) -> Figures:
    """The error rates of a model over a file of pairs.

    Of the file that it was trained on, only what was held out counts; of any other, every line.

    Raises:
        PairsError: if there is no such file, or it holds what the model cannot read.
    """
    card = bundle.card
    if pairs is None:
        raise PairsError(f"pairs: expected --pairs FILE.tsv to evaluate {card.name} on, got none")
    file = read_pairs(pairs)
    lines = file.lines
    if file.sha256 == card.corpus["sha256"]:
        share = card.corpus["held_out_share"]
        lines = [line for line in lines if is_held_out(line.source, share)]
    encoded = encode_pairs(file, lines, card.vocabulary, card.target_vocabulary or card.vocabulary)
    longest = max(len(source) for source in encoded.sources)
    if longest > card.limits["max_len"]:
        raise PairsError(
            f"{pairs}: expected sources of at most {card.limits['max_len']} symbols, which "
            f"{card.name} can read, got one of {longest}"
        )
    assert isinstance(bundle.model, EncoderDecoder)
    return measure(bundle.model, encoded)


def _write_cmudict(options: argparse.Namespace) -> None:
    count = write_pairs(options.out)
    sys.stdout.write(f"wrote {count} pairs to {options.out}\n")


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            "expected 1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or digit, "
            f"got {text!r}"
        )
    return text


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1, got {text!r}")
    return share

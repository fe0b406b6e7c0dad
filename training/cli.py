"""The command line: trains recipes, recomputes the figures of bundles, measures the cost curve."""

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from models.checkpoint import CheckpointError, find_bundle, load_model, read_card
from models.perceiver import PerceiverConfig
from models.vocabulary import Vocabulary
from training import causal_lm, masked_lm, perceiver, plots, reversal
from training.corpus import CorpusError, load_corpus
from training.cost_curve import measure_cost
from training.loop import TrainingError, show, train
from training.recipe import Recipe

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
COST_LENGTHS = (1024, 2048, 4096, 8192)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A recipe by its presets; ``vocabulary`` is None where no corpus is read."""

    recipe: Any
    vocabulary: Vocabulary | None
    summary: str

    def build(self, preset: str, corpus: Path | None) -> Recipe:
        """The recipe of that preset, with its corpus at hand."""
        make: Callable[..., Recipe] = getattr(self.recipe, preset)
        return make(load_corpus(corpus, self.vocabulary)) if self.vocabulary else make()


RECIPES = {
    "masked-lm": Entry(
        masked_lm.MaskedLMRecipe, masked_lm.vocabulary, "an encoder that fills masked characters"
    ),
    "reversal": Entry(reversal.ReversalRecipe, None, "an encoder-decoder that reverses strings"),
    "perceiver": Entry(
        perceiver.PerceiverRecipe, perceiver.vocabulary, "text through 64 latents and back"
    ),
    "causal-lm": Entry(
        causal_lm.CausalLMRecipe, causal_lm.vocabulary, "a decoder that continues text"
    ),
}
PRESETS = ("book", "debug")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit status: 0, 1 for a failure, 2 for wrong arguments."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)
    try:
        options.run(options)
    except (CorpusError, CheckpointError, TrainingError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, entry in RECIPES.items():
        command = commands.add_parser(name, help=f"train {entry.summary}")
        command.add_argument("--preset", choices=PRESETS, default="book")
        command.add_argument(
            "--seed", type=int, help="default: the preset's own, which is 0 if not said"
        )
        command.add_argument(
            "--out", type=Path, default=CHECKPOINTS, help="where bundles go (default: checkpoints)"
        )
        command.add_argument(
            "--run-dir", type=Path, help="where metrics.jsonl goes (default: runs/COMMAND)"
        )
        if entry.vocabulary:
            _add_corpus(command)
        command.set_defaults(run=_train, name=name)
    command = commands.add_parser("evaluate", help="recompute the figures of a bundle")
    command.add_argument("name", metavar="NAME", help="as in checkpoints/NAME/VERSION")
    command.add_argument("--checkpoints", type=Path, default=CHECKPOINTS)
    command.add_argument("--json", action="store_true", help="print JSON")
    _add_corpus(command)
    command.set_defaults(run=_evaluate)
    command = commands.add_parser("cost-curve", help="time the Perceiver against self-attention")
    command.add_argument("--out", type=Path, default=Path("runs/cost_curve.png"), help="the plot")
    command.set_defaults(run=_cost_curve)
    return top


def _add_corpus(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--corpus", type=Path, help="the book's timemachine.txt (default: cached, else downloaded)"
    )


def _train(options: argparse.Namespace) -> None:
    recipe = RECIPES[options.name].build(options.preset, getattr(options, "corpus", None))
    if options.seed is not None:
        recipe = dataclasses.replace(recipe, seed=options.seed)
    run_directory = options.run_dir or Path("runs") / options.name
    bundle = train(recipe, options.preset, options.out, run_directory)
    card, _ = read_card(bundle)
    sys.stdout.write(f"{show(card.figures)}\nsaved {bundle}\n")


def _evaluate(options: argparse.Namespace) -> None:
    bundle = load_model(find_bundle(options.checkpoints, options.name))
    card = bundle.card
    recipe = RECIPES[card.name].build(card.recipe["preset"], options.corpus)
    recipe = dataclasses.replace(recipe, seed=card.recipe["seed"])
    figures = recipe.evaluate(bundle.model)
    recorded = {name: value for name, value in card.figures.items() if name not in figures}
    if options.json:
        content = {"name": card.name, "version": card.version, "figures": figures}
        sys.stdout.write(json.dumps({**content, "recorded_in_training": recorded}) + "\n")
    else:
        sys.stdout.write(
            f"{card.name} version {card.version}, recomputed:\n{show(figures, '  ')}\n"
        )
        sys.stdout.write(f"recorded in training:\n{show(recorded, '  ')}\n")


def _cost_curve(options: argparse.Namespace) -> None:
    curve = measure_cost(PerceiverConfig.book(28), COST_LENGTHS)
    plots.cost_curve(options.out, curve)
    sys.stdout.write(f"{curve.table()}\nplotted in {options.out}\n")

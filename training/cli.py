"""The command line: trains recipes, recomputes the figures of bundles, measures the cost curve."""

import argparse
import dataclasses
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from models.checkpoint import Bundle, CheckpointError, ModelCard, find_bundle, load_model, read_card
from models.cores import num_cores, run_calls_side_by_side
from models.perceiver import PerceiverConfig
from models.products import multiplied_in
from models.vocabulary import Vocabulary
from training import causal_lm, masked_lm, pair_commands, perceiver, plots, reversal
from training.causal_lm_ragged import RaggedCausalLMRecipe
from training.corpus import CorpusError, is_book, load_corpus
from training.cost_curve import measure_cost
from training.devices import (
    DevicesError,
    join_processes,
    pool_size_for,
    split_cpu,
    threads_for,
)
from training.loop import Interrupted, RunOptions, TrainingError, show, train
from training.masked_lm_ragged import RaggedMaskedLMRecipe
from training.own_text import BUILD
from training.pairs import PairsError
from training.public_text import load_public_text
from training.recipe import Figures, Recipe
from training.run_directory import RunError
from training.step import Optimization
from training.text_recipes import OWN_PRESETS, TEXT_RECIPES, recipe_for_text, recipe_to_evaluate

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
COST_LENGTHS = (1024, 2048, 4096, 8192)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A recipe by its presets; ``vocabulary`` is None where no corpus is read.

    The preset ``default`` of a text recipe is that of ``ragged``, and reads more text.
    """

    recipe: Any
    vocabulary: Vocabulary | None
    summary: str
    ragged: Any = None

    @property
    def presets(self) -> tuple[str, ...]:
        """Those that the recipe has, the one first that a command takes if none is named."""
        return tuple(OUT) if self.ragged else ("book", "debug")

    def build(self, preset: str, corpus: Sequence[Path] | None, *, to_train: bool = True) -> Recipe:
        """The recipe of that preset, with its corpus at hand; other text is for training only."""
        if not self.vocabulary:
            make: Callable[..., Recipe] = getattr(self.recipe, preset)
            return make()
        if corpus and len(corpus) > 1:
            raise OptionError(
                "--corpus: expected the one file of the book, or --name NAME with text of your own"
            )
        text = load_corpus(corpus[0] if corpus else None, self.vocabulary)
        if preset != "default":
            return getattr(self.recipe, preset)(text)
        return self.ragged.default(text, load_public_text(self.vocabulary) if to_train else ())


RECIPES = {
    "masked-lm": Entry(
        masked_lm.MaskedLMRecipe,
        masked_lm.vocabulary,
        "an encoder that fills masked characters",
        RaggedMaskedLMRecipe,
    ),
    "reversal": Entry(
        reversal.ReversalRecipe,
        None,
        "an encoder-decoder that reverses strings",
        reversal.ReversalRecipe,
    ),
    "perceiver": Entry(
        perceiver.PerceiverRecipe,
        perceiver.vocabulary,
        "text through 64 latents and back",
        perceiver.PerceiverRecipe,
    ),
    "causal-lm": Entry(
        causal_lm.CausalLMRecipe,
        causal_lm.vocabulary,
        "a decoder that continues text",
        RaggedCausalLMRecipe,
    ),
}
NAME_PATTERN = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
logger = logging.getLogger(__name__)

# What debug trains must not be what is served.
OUT = {"default": CHECKPOINTS, "book": CHECKPOINTS, "debug": Path("runs/checkpoints")}


class OptionError(ValueError):
    """Options that do not go together, or not with the preset."""


FAILURES = (
    CheckpointError,
    CorpusError,
    DevicesError,
    OptionError,
    OSError,
    PairsError,
    RunError,
    TrainingError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit status: 0, 1 for a failure, 2 for wrong arguments."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    for library in ("absl", "jax"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        options.run(options)
    except Interrupted as stop:
        sys.stderr.write(f"{stop}\n")
        return 128 + stop.signal_number
    except FAILURES as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except Exception:
        if jax.process_count() == 1:
            raise
        # With its peers gone, a process would wait for them at the interpreter's exit.
        logger.exception("process %d failed", jax.process_index())
        os._exit(1)
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, entry in RECIPES.items():
        command = commands.add_parser(name, help=f"train {entry.summary}")
        _add_training(command, name, entry.presets)
        if entry.vocabulary:
            _add_corpus(command)
            _add_own_text(command)
    command = commands.add_parser(
        pair_commands.COMMAND, help="train an encoder-decoder on any file of pairs"
    )
    _add_training(command, pair_commands.COMMAND, pair_commands.PRESETS)
    pair_commands.add_options(command)
    command = commands.add_parser("cmudict", help="write the CMU dictionary as a file of pairs")
    pair_commands.add_cmudict(command)
    command = commands.add_parser("evaluate", help="recompute the figures of a bundle")
    command.add_argument("name", metavar="NAME", help="as in checkpoints/NAME/VERSION")
    command.add_argument("--checkpoints", type=Path, default=CHECKPOINTS)
    command.add_argument("--json", action="store_true", help="print JSON")
    _add_dtype(command)
    _add_corpus(command)
    command.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE.tsv",
        help="for a model of seq2seq: its pairs, or others",
    )
    command.set_defaults(run=_evaluate)
    command = commands.add_parser("cost-curve", help="time the Perceiver against self-attention")
    command.add_argument("--out", type=Path, default=Path("runs/cost_curve.png"), help="the plot")
    command.set_defaults(run=_cost_curve)
    return top


def _add_training(command: argparse.ArgumentParser, name: str, presets: Sequence[str]) -> None:
    command.add_argument("--preset", choices=presets, default=presets[0])
    command.add_argument(
        "--seed", type=_natural, help="default: the preset's own, which is 0 if not said"
    )
    command.add_argument(
        "--num-steps", type=_positive, metavar="N", help="default: the preset's own"
    )
    command.add_argument(
        "--out",
        type=Path,
        help="where bundles go (default: checkpoints; with --preset debug, runs/checkpoints)",
    )
    command.add_argument(
        "--run-dir",
        type=Path,
        help="where metrics and saved states go (default: runs/COMMAND)",
    )
    _add_running(command)
    command.set_defaults(run=_train, name=name)


def _add_running(command: argparse.ArgumentParser) -> None:
    again = command.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on with an unfinished run")
    again.add_argument("--replace", action="store_true", help="drop an unfinished run, start anew")
    command.add_argument(
        "--save-every", type=_positive, default=500, metavar="STEPS", help="default: 500"
    )
    command.add_argument(
        "--steps-per-dispatch", type=_positive, metavar="N", help="steps sent to the device at once"
    )
    command.add_argument(
        "--microbatches", type=_positive, metavar="N", help="parts of a batch, one after another"
    )
    _add_dtype(command)
    shared = command.add_mutually_exclusive_group()
    shared.add_argument(
        "--cpu-threads",
        type=_positive,
        metavar="N",
        help="threads of one CPU, each with a share of the batch (default: one for every core)",
    )
    shared.add_argument(
        "--cpu-devices",
        type=_positive,
        metavar="N",
        help="split the CPU into N devices and train data-parallel over them",
    )
    several = command.add_argument_group("several processes, one command each")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    several.add_argument("--num-processes", type=_positive, metavar="N")
    several.add_argument("--process-id", type=_natural, metavar="I", help="from 0")


def _add_dtype(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="what matrices are multiplied in; all else is float32 (default: float32)",
    )


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _add_corpus(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--corpus",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="the book's timemachine.txt (default: cached, else downloaded), or any UTF-8 files",
    )


def _add_own_text(command: argparse.ArgumentParser) -> None:
    own = command.add_argument_group("text of your own, given with --corpus")
    own.add_argument("--name", dest="model_name", metavar="NAME", help="what to call the model")
    own.add_argument(
        "--vocabulary",
        metavar="FILE",
        help=f"a model.json whose alphabet to take, or a text file of characters; {BUILD} (the "
        "default) takes every character that is not rare",
    )


def _train(options: argparse.Namespace) -> None:
    if options.cpu_threads and options.coordinator:
        raise OptionError("--cpu-threads: expected none beside --coordinator")
    if options.cpu_devices:
        split_cpu(options.cpu_devices)
    join_processes(options.coordinator, options.num_processes, options.process_id)
    recipe = _recipe(options)
    if options.seed is not None:
        recipe = dataclasses.replace(recipe, seed=options.seed)
    recipe = dataclasses.replace(recipe, optimization=_optimization(options, recipe))
    run_directory = options.run_dir or Path("runs") / recipe.identity().name
    bundle = train(
        recipe,
        RunOptions(
            command=_command(options, recipe),
            preset=options.preset,
            out=options.out or OUT[options.preset],
            run_directory=run_directory,
            resume=options.resume,
            replace=options.replace,
            save_every=options.save_every,
            dtype=options.dtype,
            num_threads=_num_threads(options, recipe.optimization),
        ),
    )
    if bundle:
        card, _ = read_card(bundle)
        sys.stdout.write(f"{show(card.figures)}\nsaved {bundle}\n")


def _num_threads(options: argparse.Namespace, optimization: Optimization) -> int:
    """How many threads share a batch; to be asked before anything is computed."""
    if options.cpu_devices or options.coordinator:
        return 1
    num_rows = optimization.batch_size // optimization.num_microbatches
    count = threads_for(num_rows, options.cpu_threads or num_cores())
    pool_size = pool_size_for(options.dtype, count)
    return count if count > 1 and run_calls_side_by_side(pool_size) else 1


def _recipe(options: argparse.Namespace) -> Recipe:
    """The recipe that the options of a training command ask for."""
    if options.name == pair_commands.COMMAND:
        return pair_commands.build(options)
    entry = RECIPES[options.name]
    if not entry.vocabulary:
        return entry.build(options.preset, None)
    if options.model_name is None:
        if options.vocabulary is not None:
            raise OptionError("--vocabulary: expected --name NAME with it, and text of your own")
        return entry.build(options.preset, options.corpus)
    if not options.corpus:
        raise OptionError("--name: expected --corpus FILE... with it, the text to train on")
    if options.preset not in OWN_PRESETS:
        raise OptionError(
            f"--preset: expected one of {tuple(OWN_PRESETS)} with --name, got {options.preset!r}"
        )
    if not NAME_PATTERN.fullmatch(options.model_name) or options.model_name in RECIPES:
        raise OptionError(
            "--name: expected letters, digits, '.', '_' and '-', beginning with a letter or digit, "
            f"and none of {', '.join(RECIPES)}; got {options.model_name!r}"
        )
    return recipe_for_text(
        entry.ragged,
        options.preset,
        options.corpus,
        vocabulary=options.vocabulary or BUILD,
        special=entry.vocabulary.specials[0],
        name=options.model_name,
    )


def _optimization(options: argparse.Namespace, recipe: Recipe) -> Optimization:
    """The preset's, with what the command says; a shorter run warms up for at most half of it."""
    preset = recipe.optimization
    num_steps = options.num_steps or preset.num_steps
    try:
        return dataclasses.replace(
            preset,
            num_steps=num_steps,
            warmup_steps=min(preset.warmup_steps, num_steps // 2),
            steps_per_dispatch=options.steps_per_dispatch or preset.steps_per_dispatch,
            num_microbatches=options.microbatches or preset.num_microbatches,
        )
    except ValueError as error:
        raise OptionError(str(error)) from error


def _command(options: argparse.Namespace, recipe: Recipe) -> str:
    """The command that trains the same model again, without what names this machine's paths."""
    command = f"python -m training {options.name} --preset {options.preset} --seed {recipe.seed}"
    if options.name == pair_commands.COMMAND:
        command += f" {pair_commands.spelled(options)}"
    elif getattr(options, "model_name", None):
        files = " ".join(shlex.quote(path.name) for path in options.corpus)
        command += f" --name {options.model_name} --corpus {files}"
        if options.vocabulary:
            command += f" --vocabulary {shlex.quote(Path(options.vocabulary).name)}"
    for name in ("num_steps", "steps_per_dispatch", "microbatches"):
        if value := getattr(options, name):
            command += f" --{name.replace('_', '-')} {value}"
    return command if options.dtype == "float32" else f"{command} --dtype {options.dtype}"


def _evaluate(options: argparse.Namespace) -> None:
    bundle = load_model(find_bundle(options.checkpoints, options.name))
    card = bundle.card
    with multiplied_in(options.dtype):
        figures = _figures(options, bundle)
    recorded = {name: value for name, value in card.figures.items() if name not in figures}
    if options.json:
        told = {"name": card.name, "version": card.version, "dtype": options.dtype}
        told |= {"figures": figures, "recorded_in_training": recorded}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.write(
            f"{card.name} version {card.version}, recomputed in {options.dtype}:\n"
            f"{show(figures, '  ')}\n"
        )
        sys.stdout.write(f"recorded in training:\n{show(recorded, '  ')}\n")


def _figures(options: argparse.Namespace, bundle: Bundle) -> Figures:
    """What is measured of a bundle today."""
    if pair_commands.has_trained(bundle.card):
        return pair_commands.evaluate(bundle, options.pairs)
    return _recipe_to_evaluate(bundle.card, options.corpus).evaluate(bundle.model)


def _recipe_to_evaluate(card: ModelCard, corpus: Sequence[Path] | None) -> Recipe:
    """What measures a model: the recipe that trained it, or another text's where one is given."""
    known = card.name in RECIPES and card.recipe.get("preset") in OUT
    if corpus and card.wiring not in TEXT_RECIPES:
        raise OptionError(f"--corpus: {card.name} reads no text")
    if known and (not corpus or (len(corpus) == 1 and is_book(corpus[0]))):
        recipe = RECIPES[card.name].build(card.recipe["preset"], corpus, to_train=False)
        return dataclasses.replace(recipe, seed=card.recipe["seed"])
    if card.wiring not in TEXT_RECIPES or "optimization" not in card.recipe:
        raise CheckpointError(f"{card.name}: expected a model of the recipes {sorted(RECIPES)}")
    if not corpus:
        raise OptionError(
            f"{card.name}: expected --corpus FILE..., the text to measure it on; it was trained on "
            f"{card.corpus.get('name')}"
        )
    return recipe_to_evaluate(card, corpus)


def _cost_curve(options: argparse.Namespace) -> None:
    curve = measure_cost(PerceiverConfig.book(28), COST_LENGTHS)
    plots.cost_curve(options.out, curve)
    sys.stdout.write(f"{curve.table()}\nplotted in {options.out}\n")

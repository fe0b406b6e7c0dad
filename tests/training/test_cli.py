import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from models.checkpoint import load_model, read_card
from models.directories import find_bundles
from models.wirings import WIRINGS
from training import cli, corpus
from training.causal_lm import CausalLMRecipe
from training.corpus import Corpus
from training.cost_curve import CostCurve
from training.reversal import ReversalRecipe, draw_strings

PLOTS = {
    "masked-lm": {"loss_curve.png", "loss_by_position.png"},
    "reversal": {"loss_curve.png", "alignment.png"},
    "perceiver": {"loss_curve.png", "fidelity.png", "cost_curve.png"},
    "causal-lm": {"loss_curve.png", "loss_by_position.png"},
}
NUM_STEPS = 4
METRICS = {"step", "loss", "steps_per_s", "share_of_matmul_peak", "padding_share", "seconds"}
SEED = 7


def corpus_options(name, path):
    return [] if name == "reversal" else ["--corpus", path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, command, corpus_path):
    """Trains each recipe once, by its command: exit status, output, checkpoints and run."""
    runs = {}

    def train(name):
        if name not in runs:
            root, run = (tmp_path_factory.mktemp(f"{name}-{kind}") for kind in ("out", "run"))
            options = ["--preset", "debug", "--seed", SEED, "--out", root, "--run-dir", run]
            result = command(name, *options, *corpus_options(name, corpus_path))
            runs[name] = (*result, root, run)
        return runs[name]

    return train


NAMES = pytest.mark.parametrize("name", PLOTS)


@NAMES
def test_training_ends_well_and_says_where_the_bundle_is(trained, name):
    status, out, _, root, _ = trained(name)
    assert status == 0
    assert out.endswith(f"saved {root / name / '1'}\n")
    assert find_bundles(root) == {name: root / name / "1"}


@NAMES
def test_the_bundle_says_how_it_was_trained(trained, name, recipes):
    card = load_model(trained(name)[3] / name / "1").card
    assert (card.name, card.version) == (name, 1)
    assert card.wiring in WIRINGS
    command = f"python -m training {name} --preset debug --seed {SEED}"
    assert card.recipe["command"] == command
    assert (card.recipe["preset"], card.recipe["seed"]) == ("debug", SEED)
    assert card.recipe["optimization"]["num_steps"] == NUM_STEPS
    assert card.recipe["seconds"] > 0
    assert card.created > 1_700_000_000
    assert {"jax", "flax", "optax", "numpy"} <= card.library_versions.keys()
    if name != "reversal":
        assert card.corpus["name"] == "timemachine.txt"
        assert len(card.corpus["sha256"]) == 64


@NAMES
def test_metrics_hold_one_record_a_step(trained, name):
    lines = (trained(name)[4] / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert all(math.isfinite(record["loss"]) and record["loss"] > 0 for record in records)
    assert all(record.keys() == METRICS for record in records)


@NAMES
def test_the_bundle_holds_every_plot(trained, name, assert_png):
    plots = trained(name)[3] / name / "1" / "plots"
    assert {path.name for path in plots.iterdir()} == PLOTS[name]
    for path in plots.iterdir():
        assert_png(path)


@NAMES
def test_evaluation_gives_the_figures_of_the_bundle_again(trained, name, command, corpus_path):
    root = trained(name)[3]
    recorded = read_card(root / name / "1")[0].figures
    options = ["--json", "--checkpoints", root, *corpus_options(name, corpus_path)]
    status, out, _ = command("evaluate", name, *options)
    assert status == 0
    answer = json.loads(out)
    assert (answer["name"], answer["version"]) == (name, 1)
    figures = {**answer["figures"], **answer["recorded_in_training"]}
    # How long reading takes is measured anew, on whatever else the machine is doing.
    costs = [every.pop("cost", {"lengths": None}) for every in (figures, recorded)]
    assert costs[0]["lengths"] == costs[1]["lengths"]
    assert figures == recorded
    assert answer["figures"].keys() & answer["recorded_in_training"].keys() == set()


def test_evaluation_reads_as_lines_without_json(command, monkeypatch, tiny_checkpoints):
    monkeypatch.setattr(ReversalRecipe, "evaluate", lambda recipe, model: {"exact_match": 0.25})
    status, out, _ = command("evaluate", "reversal", "--checkpoints", tiny_checkpoints)
    assert status == 0
    assert out.split("\n")[:3] == [
        "reversal version 1, recomputed in float32:",
        "  exact_match: 0.2500",
        "recorded in training:",
    ]


def test_evaluation_tells_what_half_the_width_would_cost(trained, command, corpus_path):
    root = trained("masked-lm")[3]
    options = ["--json", "--checkpoints", root, "--corpus", corpus_path]
    answers = []
    for dtype in ("float32", "bfloat16"):
        status, out, _ = command("evaluate", "masked-lm", *options, "--dtype", dtype)
        assert status == 0
        answers.append(json.loads(out))
    assert [answer["dtype"] for answer in answers] == ["float32", "bfloat16"]
    exact, coarse = (answer["figures"]["validation_loss"] for answer in answers)
    assert exact != coarse
    assert coarse == pytest.approx(exact, rel=0.01)


@NAMES
def test_no_path_is_in_any_file_of_a_trained_bundle(trained, name, corpus_path):
    *_, root, run = trained(name)
    secrets = [str(path).encode() for path in (root, run, corpus_path.parent)]
    for path in (root / name / "1").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), path


def test_training_again_makes_a_new_version_and_leaves_the_old_alone(trained, command, tmp_path):
    root = shutil.copytree(trained("reversal")[3], tmp_path / "checkpoints")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    options = ["--preset", "debug", "--seed", SEED, "--out", root, "--run-dir", tmp_path / "run"]
    status, out, _ = command("reversal", *options)
    assert status == 0
    assert f"saved {root / 'reversal' / '2'}" in out
    assert before == {path: path.read_bytes() for path in before}
    first, second = (read_card(root / "reversal" / version)[0] for version in "12")
    assert second.version == 2
    # The same command with the same seed is the same training.
    assert first.figures == second.figures
    assert read_card(root / "reversal" / "1")[1] == read_card(root / "reversal" / "2")[1]


def test_the_seed_of_the_command_is_that_of_the_data(trained, monkeypatch):
    seeds = []

    def note(seed, *sizes):
        seeds.append(seed[0])
        return draw_strings(seed, *sizes)

    monkeypatch.setattr("training.reversal.draw_strings", note)
    recipe = cli.RECIPES["reversal"].build("debug", None)
    options = cli.parser().parse_args(["reversal", "--seed", "5"])
    monkeypatch.setattr(cli, "train", lambda recipe, *_: recipe.batch(0) and 1 / 0)
    assert recipe.seed == 0
    with pytest.raises(ZeroDivisionError):
        options.run(options)
    assert seeds == [5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["gpt"], "invalid choice: 'gpt'"),
        (["reversal", "--preset", "huge"], "invalid choice: 'huge'"),
        (["reversal", "--corpus", "x.txt"], "unrecognized arguments: --corpus"),
        (["reversal", "--seed", "one"], "--seed: expected a whole number from 0, got 'one'"),
        (["reversal", "--seed", "-1"], "--seed: expected a whole number from 0, got '-1'"),
        (["reversal", "--num-steps", "0"], "--num-steps: expected a whole number from 1, got '0'"),
        (["reversal", "--resume", "--replace"], "not allowed with argument --resume"),
        (["evaluate"], "NAME"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_exit_with_2_and_say_why(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["masked-lm", "perceiver", "causal-lm"])
def test_a_missing_corpus_exits_with_1_and_says_where_it_looked(command, tmp_path, name):
    status, out, err = command(name, "--corpus", tmp_path / "no.txt", "--out", tmp_path / "out")
    assert (status, out) == (1, "")
    assert err.startswith("error: corpus: expected a readable file, got ")
    assert str(tmp_path / "no.txt") in err
    assert not (tmp_path / "out").exists()


def test_without_corpus_or_network_the_message_names_the_option(command, monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise OSError("unreachable")

    monkeypatch.setattr(corpus.urllib.request, "urlopen", refuse)
    status, _, err = command("masked-lm", "--out", tmp_path / "out")
    assert status == 1
    assert "--corpus PATH" in err


def test_an_unwritable_output_exits_with_1_and_names_it(command, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = command(
        "reversal", "--preset", "debug", "--out", tmp_path / "file" / "out", "--run-dir", tmp_path
    )
    assert status == 1
    assert err.startswith("error: ")
    assert str(tmp_path / "file") in err


def test_evaluating_what_is_not_there_exits_with_1_and_lists_what_is(command, tiny_checkpoints):
    status, _, err = command("evaluate", "gpt", "--checkpoints", tiny_checkpoints)
    assert status == 1
    assert "expected a model named 'gpt', found causal-lm, masked-lm, perceiver, reversal" in err


def test_a_damaged_bundle_exits_with_1_and_names_it(command, tiny_checkpoints, tmp_path):
    root = shutil.copytree(tiny_checkpoints, tmp_path / "checkpoints")
    (root / "reversal" / "1" / "model.json").write_text("{")
    status, _, err = command("evaluate", "reversal", "--checkpoints", root)
    assert status == 1
    assert str(root / "reversal" / "1" / "model.json") in err


def test_the_cost_curve_is_printed_and_plotted(command, monkeypatch, tmp_path, assert_png):
    def measured(config, lengths):
        assert (config.num_latents, config.embed_dim) == (64, 256)
        assert lengths == (1024, 2048, 4096, 8192)
        sizes = np.array(lengths)
        return CostCurve(
            lengths=lengths,
            self_attention_ms=tuple((sizes**2 / 1e5).tolist()),
            perceiver_ms=tuple((sizes / 1e3).tolist()),
            self_attention_exponent=2.0,
            perceiver_exponent=1.0,
        )

    monkeypatch.setattr(cli, "measure_cost", measured)
    status, out, _ = command("cost-curve", "--out", tmp_path / "plots" / "cost.png")
    assert status == 0
    assert "grows as N^2.00 against N^1.00" in out
    assert f"plotted in {tmp_path / 'plots' / 'cost.png'}" in out
    assert_png(tmp_path / "plots" / "cost.png")


def test_what_debug_trains_goes_where_it_is_not_served(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = command("reversal", "--preset", "debug")
    assert status == 0
    assert out.endswith(f"saved {Path('runs/checkpoints/reversal/1')}\n")


def test_a_short_run_warms_up_for_at_most_half_of_it(trained_options):
    optimization = cli._optimization(trained_options("--num-steps", "20"), WARM_RECIPE)
    assert (optimization.num_steps, optimization.warmup_steps) == (20, 10)
    optimization = cli._optimization(trained_options(), WARM_RECIPE)
    assert (optimization.num_steps, optimization.warmup_steps) == (700, 50)


def test_what_the_command_says_of_dispatches_and_parts_is_taken(trained_options):
    options = trained_options("--steps-per-dispatch", "5", "--microbatches", "4")
    optimization = cli._optimization(options, WARM_RECIPE)
    assert (optimization.steps_per_dispatch, optimization.num_microbatches) == (5, 4)
    command = cli._command(options, WARM_RECIPE)
    assert command.endswith(" --steps-per-dispatch 5 --microbatches 4")


def test_parts_that_do_not_divide_the_batch_are_told(command, tmp_path):
    options = ["--preset", "debug", "--microbatches", "3", "--out", tmp_path]
    status, _, err = command("reversal", *options)
    assert status == 1
    assert "num_microbatches: expected a divisor of batch_size 8, got 3" in err


def test_a_bundle_of_no_recipe_cannot_be_evaluated(command, tiny_checkpoints, tmp_path):
    bundle = shutil.copytree(tiny_checkpoints / "reversal" / "1", tmp_path / "mine" / "1")
    card = json.loads((bundle / "model.json").read_text())
    recipe = {"preset": "debug", "command": "python -m other"}
    (bundle / "model.json").write_text(json.dumps({**card, "name": "mine", "recipe": recipe}))
    status, _, err = command("evaluate", "mine", "--checkpoints", tmp_path)
    assert status == 1
    assert "mine: expected a model of the recipes" in err


@pytest.fixture
def trained_options():
    return lambda *options: cli.parser().parse_args(["causal-lm", *options])


WARM_RECIPE = CausalLMRecipe.book(Corpus(np.zeros(1, np.int32), "", ""))

import numpy as np
import pytest

from training import plots
from training.cost_curve import CostCurve

CURVE = CostCurve(
    lengths=(1024, 8192),
    self_attention_ms=(10.0, 640.0),
    perceiver_ms=(2.0, 16.0),
    self_attention_exponent=2.0,
    perceiver_exponent=1.0,
)
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(5), (2, 5))
SHARES = {"64": {"visible": 1.0, "hidden": 0.3}, "128": {"visible": 0.9, "hidden": 0.2}}
RATES = {
    "3": {"num_sources": 5, "sequence_error_rate": 0.2, "symbol_error_rate": 0.1},
    "5": {"num_sources": 2, "sequence_error_rate": 0.5, "symbol_error_rate": 0.3},
}
REVERSALS = {
    "1": {"exact_match": 1.0, "argmax_rate": 1.0, "mean_weight": 0.9},
    "12": {"exact_match": 0.9, "argmax_rate": 0.8, "mean_weight": 0.7},
}

DRAWINGS = {
    "loss_curve": lambda path: plots.loss_curve(path, list(np.linspace(3, 1, 80))),
    "loss_curve of one step": lambda path: plots.loss_curve(path, [2.5]),
    "loss_by_position": lambda path: plots.loss_by_position(path, {"a": [2.0, 1.0, 2.2]}, 2.83),
    "alignment": lambda path: plots.alignment(path, WEIGHTS, "abcde", "edcba"),
    "alignment of two lengths": lambda path: plots.alignment(
        path, WEIGHTS[:, :3], "abcde", ["K", "AE1", "T"]
    ),
    "by_length": lambda path: plots.by_length(path, REVERSALS),
    "errors_by_length": lambda path: plots.errors_by_length(path, RATES),
    "fidelity": lambda path: plots.fidelity(path, SHARES, 0.19),
    "cost_curve": lambda path: plots.cost_curve(path, CURVE),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_a_picture_in_a_directory_that_it_makes(tmp_path, assert_png, name):
    path = tmp_path / "plots" / "picture.png"
    DRAWINGS[name](path)
    assert_png(path)


def test_a_picture_does_not_say_what_made_it(tmp_path):
    DRAWINGS["fidelity"](tmp_path / "picture.png")
    assert b"Matplotlib" not in (tmp_path / "picture.png").read_bytes()


def test_every_head_and_their_mean_have_a_panel(tmp_path, monkeypatch):
    titles = []
    original = plots.canvas

    def canvas(path, columns=1):
        titles.append(columns)
        return original(path, columns)

    monkeypatch.setattr(plots, "canvas", canvas)
    DRAWINGS["alignment"](tmp_path / "picture.png")
    assert titles == [len(WEIGHTS) + 1]

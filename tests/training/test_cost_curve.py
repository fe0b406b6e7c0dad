import json

import jax
import numpy as np
import pytest
from flax import nnx

from models.perceiver import PerceiverConfig
from training import cost_curve
from training.cost_curve import CostCurve, SelfAttentionEncoder, growth_exponent, measure_cost
from training.step import jitted

LENGTHS = (64, 128, 256, 512)
CURVE = CostCurve(
    lengths=(1024, 8192),
    self_attention_ms=(10.0, 640.0),
    perceiver_ms=(2.0, 16.0),
    self_attention_exponent=2.0,
    perceiver_exponent=1.0,
)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", [0.003, 7.0])
def test_the_exponent_of_a_known_power_is_recovered(power, scale):
    times = [scale * length**power for length in LENGTHS]
    assert growth_exponent(LENGTHS, times) == pytest.approx(power)


def test_the_exponent_survives_noise():
    noise = np.random.default_rng(0).uniform(0.9, 1.1, len(LENGTHS))
    times = [float(n**2 * factor) for n, factor in zip(LENGTHS, noise, strict=True)]
    assert growth_exponent(LENGTHS, times) == pytest.approx(2, abs=0.1)


def test_json_brings_the_same_curve_back():
    assert CostCurve.from_json(json.loads(json.dumps(CURVE.to_json()))) == CURVE


def test_ratios_say_how_many_times_faster_the_perceiver_reads():
    assert CURVE.ratios == (5.0, 40.0)
    assert CURVE.to_json()["ratios"] == [5.0, 40.0]


def test_the_table_has_a_line_a_length_and_the_exponents():
    lines = CURVE.table().splitlines()
    assert lines[1].split() == ["1024", "10.00", "2.00", "5.0"]
    assert lines[2].split() == ["8192", "640.00", "16.00", "40.0"]
    assert lines[-1] == "grows as N^2.00 against N^1.00"


def test_the_compared_encoder_lets_every_input_read_every_other():
    config = PerceiverConfig.debug(28)
    run = jitted(SelfAttentionEncoder(config, rngs=nnx.Rngs(0)), SelfAttentionEncoder.__call__)
    x = jax.random.normal(jax.random.key(0), (1, 6, config.embed_dim))
    expected = np.asarray(run(x))
    assert expected.shape == x.shape
    for position in (0, 5):
        change = np.abs(np.asarray(run(x.at[0, position].add(1.0))) - expected)
        assert (change.max(axis=-1) > 1e-4).all()


def test_both_encoders_are_timed_at_every_length(monkeypatch):
    """A clock that counts its own readings: each call takes one tick, so 1,000 ms."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(cost_curve.time, "perf_counter", lambda: float(next(ticks)))
    curve = measure_cost(PerceiverConfig.debug(28), (8, 16))
    assert curve.lengths == (8, 16)
    assert curve.self_attention_ms == curve.perceiver_ms == (1000.0, 1000.0)
    assert curve.self_attention_exponent == pytest.approx(0)
    assert curve.perceiver_exponent == pytest.approx(0)

"""Whole measurements with contestants that answer from plain arithmetic, at once."""

import contextlib

import numpy as np
import pytest
from flax import nnx

from benchmarks import decode, forward, latents, weights
from benchmarks.peers import processes
from models.blocks import TransformerConfig
from models.encoder import MaskedLanguageModel
from models.perceiver import PerceiverAutoencoder, PerceiverConfig


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: None)


class Plain:
    """A contestant that gives what the numpy of ``weights`` gives, ``off`` by so much."""

    def __init__(self, arrays, off=0.0):
        self.arrays = arrays
        self.off = off
        self.turns = 0

    def call(self, name, **arguments):
        return getattr(self, name)(**arguments)

    def logits(self, tokens):
        return (weights.encoder_logits(self.arrays, np.array(tokens)) + self.off).tolist()

    def candidates(self, tokens, positions):
        logits = np.array(self.logits(tokens))[np.arange(len(tokens)), positions]
        return np.argsort(-logits, axis=-1)[:, :5].tolist()

    def output(self, vectors):
        return (weights.latents(self.arrays, np.array(vectors)[None])[0] + self.off).tolist()

    def decoded(self, sources):
        return [source[::-1] for source in sources]

    def memory(self, length):
        return float(length)

    def turn(self, num_calls, **_):
        self.turns += 1
        return [2.0] * num_calls

    def version(self):
        return "1.0"

    def versions(self):
        return {"library": "1.0"}

    def num_params(self):
        return 7


@pytest.fixture(scope="module")
def encoder_arrays():
    model = MaskedLanguageModel(TransformerConfig.debug(28), rngs=nnx.Rngs(0))
    return weights.of_encoder(model)


@pytest.fixture(scope="module")
def perceiver_arrays():
    return weights.of_perceiver(PerceiverAutoencoder(PerceiverConfig.debug(28), rngs=nnx.Rngs(0)))


def among(names, arrays, **off):
    return {name: Plain(arrays, off.get(name, 0.0)) for name in names}


def test_the_forward_pass_is_measured_once_all_agree(encoder_arrays, monkeypatch):
    names = (forward.OURS, *forward.PEERS, forward.OURS_NARROW, forward.PEER_NARROW)
    everyone = among(names, encoder_arrays)
    there = contextlib.nullcontext((everyone, encoder_arrays))
    monkeypatch.setattr(forward, "everyone", lambda batch_sizes: there)
    results = forward.measure(2, (1, 8))
    assert {(one["work"], one["batch"]) for one in results["work"]} == {
        (work, batch) for work in forward.WORKS for batch in (1, 8)
    }
    assert all(one["speed"]["median"] == 1.0 for one in results["work"])
    assert results["machine"]["onnxruntime"] == "1.0"
    assert results["largest_difference"][8]["ours"] < 1e-9
    assert {process.turns for process in everyone.values()} == {8}
    assert len(forward.table(results).splitlines()) == 2 * (2 + 4) + 1


def test_logits_that_are_off_end_the_measurement(encoder_arrays):
    everyone = among(["ours", "theirs"], encoder_arrays, theirs=2e-4)
    with pytest.raises(SystemExit, match=r"theirs: expected logits to 0\.0001, got 0\.0002"):
        forward.check(everyone, encoder_arrays, 2)


def test_numbers_of_half_the_width_may_be_further_off(encoder_arrays):
    everyone = among(["ours bfloat16"], encoder_arrays, **{"ours bfloat16": 0.1})
    assert forward.check(everyone, encoder_arrays, 2)["ours bfloat16"] == pytest.approx(0.1)
    everyone = among(["ours bfloat16"], encoder_arrays, **{"ours bfloat16": 0.4})
    with pytest.raises(SystemExit, match=r"ours bfloat16: expected logits to 0\.3, got 0\.4"):
        forward.check(everyone, encoder_arrays, 2)


def test_another_symbol_at_a_mask_ends_the_measurement(encoder_arrays):
    everyone = among(["ours"], encoder_arrays)
    best = everyone["ours"].candidates
    everyone["ours"].candidates = lambda tokens, positions: [
        [(row[0] + 1) % 28] for row in best(tokens, positions)
    ]
    with pytest.raises(SystemExit, match=r"ours: expected .* to come first"):
        forward.check(everyone, encoder_arrays, 2)


def test_decoding_is_measured_by_the_sequence(monkeypatch):
    everyone = among((decode.OURS, *decode.PEERS), {})
    monkeypatch.setattr(decode, "running", lambda _: contextlib.nullcontext(everyone))
    results = decode.measure(2, (12,))
    times = [one["contestants"]["ours"]["median"] for one in results["work"]]
    assert times == [2.0, 2.0 / 32]
    assert results["machine"]["library"] == "1.0"
    assert len(decode.table(results).splitlines()) == 2 + 2


def test_a_source_that_is_not_reversed_ends_the_measurement():
    everyone = among((decode.OURS, *decode.PEERS), {})
    everyone[decode.OURS].decoded = lambda sources: sources
    with pytest.raises(SystemExit, match="ours: expected"):
        decode.check(everyone, 12, 1)


def test_a_target_of_another_length_ends_the_measurement():
    everyone = among((decode.OURS, *decode.PEERS), {})
    everyone[decode.PEERS[0]].decoded = lambda sources: [source[1:] for source in sources]
    with pytest.raises(SystemExit, match=r"all cores: expected 12 tokens, got \[11\]"):
        decode.check(everyone, 12, 1)


def test_the_t5_has_the_size_of_the_bundle():
    assert decode.t5_size(decode.BUNDLE) == {
        "vocab_size": 96,
        "embed_dim": 128,
        "num_heads": 4,
        "mlp_dim": 341,
        "num_layers": 1,
    }


def test_latents_are_measured_where_everybody_can(perceiver_arrays, monkeypatch):
    everyone = among(latents.EVERYONE, perceiver_arrays)
    there = contextlib.nullcontext((everyone, perceiver_arrays))
    monkeypatch.setattr(latents, "everyone", lambda lengths: there)
    results = latents.measure(2, (8192, 16384))
    short, long = results["work"]
    assert set(short["contestants"]) == set(latents.EVERYONE)
    assert set(long["contestants"]) == set(latents.EVERYONE) - {latents.FULL}
    assert short["speed_against"][latents.FULL]["median"] == 1.0
    assert long["memory_mib"][latents.OURS] == 16384
    assert results["exponents"][latents.FULL] == {"all": None, "long": None}
    assert set(long["narrow_against"]) == {latents.TORCH, latents.FULL_TORCH}
    assert len(latents.table(results).splitlines()) == 3 * (4 + 1) + 2 + len(latents.EVERYONE)


def test_in_half_the_width_ours_is_held_against_the_fastest_in_any(perceiver_arrays, monkeypatch):
    everyone = among(latents.EVERYONE, perceiver_arrays)
    everyone[latents.TORCH_NARROW].turn = lambda num_calls, **_: [1.0] * num_calls
    everyone[latents.FULL_TORCH_NARROW].turn = lambda num_calls, **_: [3.0] * num_calls
    there = contextlib.nullcontext((everyone, perceiver_arrays))
    monkeypatch.setattr(latents, "everyone", lambda lengths: there)
    (found,) = latents.measure(2, (256,))["work"]
    speeds = {name: speed["median"] for name, speed in found["narrow_against"].items()}
    assert speeds == {latents.TORCH: 0.5, latents.FULL: 1.0, latents.FULL_TORCH: 1.0}


@pytest.mark.parametrize(("name", "off"), [(latents.TORCH, 2e-3), (latents.TORCH_NARROW, 0.2)])
def test_latents_that_are_off_end_the_measurement(perceiver_arrays, name, off):
    everyone = among(latents.EVERYONE, perceiver_arrays, **{name: off * 0.4})
    assert latents.check(everyone, perceiver_arrays)[name] == pytest.approx(off * 0.4)
    everyone[name].off = off
    with pytest.raises(SystemExit, match=f"{name}: expected latents to"):
        latents.check(everyone, perceiver_arrays)

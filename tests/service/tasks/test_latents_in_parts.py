import dataclasses
import re

import jax
import numpy as np
import pytest

from models import packed_perceiver, packed_reading
from models.checkpoint import save_model
from models.perceiver import PerceiverAutoencoder
from service.app import create_app
from service.batcher import Batcher
from service.settings import Settings
from service.tasks import latents_in_parts
from service.tasks.latents import programs
from service.tasks.latents_in_parts import SHORTEST_PART, TILE, parts_of
from tests.service import fakes, tiny

PATH = "/v1/latents"
ATOL = 1e-5
CARD = next(card for card in tiny.cards() if card.wiring == "perceiver")
NUM_THREADS = 3
SHORT_TILE, SHORT_PART = 8, 16
LONG = "the time machine by h g wells, an invention " * 2


@pytest.mark.parametrize("num_threads", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 1023, 1024, 2047, 2048, 2049, 3000, 5121, 8191, 8192, 100_000])
def test_parts_are_of_whole_tiles_and_follow_each_other(size, num_threads):
    parts = parts_of(size, num_threads)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == size
    assert len(parts) <= max(num_threads, 1)
    lengths = [part.stop - part.start for part in parts]
    if len(parts) > 1:
        assert all(length == lengths[0] and length % TILE == 0 for length in lengths[:-1])
        assert lengths[0] >= SHORTEST_PART
        # No thread has more than its share, but for a tile that would be shared otherwise.
        assert lengths[0] < size / len(parts) + TILE


def test_short_inputs_are_not_shared_and_long_ones_are():
    assert [len(parts_of(size, 8)) for size in (1, 2047, 2048, 4096, 8192)] == [1, 1, 2, 4, 8]


def test_a_part_of_any_input_fits_what_is_compiled_for_parts():
    for max_len in (2048, 2049, 5000, 8192, 100_000):
        card = dataclasses.replace(CARD, limits={"min_len": 1, "max_len": max_len})
        compiled = {p.name: p.bucket for p in programs(card) if p.is_part}
        assert len(compiled) == 4
        for size in {min(size, max_len) for size in (2048, 2049, 3000, 7777, max_len)}:
            for num_threads in (2, 3, 5):
                longest = max(part.stop - part.start for part in parts_of(size, num_threads))
                assert all(compiled[name](longest) for name in compiled if name != "latents+joined")


def test_models_of_short_inputs_have_no_parts():
    for max_len in (1, 128, 2047):
        card = dataclasses.replace(CARD, limits={"min_len": 1, "max_len": max_len})
        assert not any(program.is_part for program in programs(card))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A client of a service whose threads share inputs of 32 or more, of up to 128."""
    root = tmp_path_factory.mktemp("perceiver")
    save_model(root, CARD, tiny.model(CARD))
    with pytest.MonkeyPatch.context() as patch:
        for module in (latents_in_parts, packed_reading, packed_perceiver):
            patch.setattr(module, "TILE", SHORT_TILE)
        patch.setattr(packed_perceiver, "SHORTEST_TILE", SHORT_TILE)
        patch.setattr(latents_in_parts, "SHORTEST_PART", SHORT_PART)
        settings = Settings(checkpoints=root, calls_at_once=NUM_THREADS, compilation_cache="off")
        with fakes.serving(create_app(settings)) as client:
            assert client.get("/readyz").json()["failures"] == {}
            yield client


@pytest.fixture
def counted(service):
    """How many rows each program has computed since this was last asked."""
    before: dict[str, float] = {}

    def counted():
        found = dict(
            re.findall(
                r'^triwire_batch_rows_sum\{[^}]*program="([^"]*)"[^}]*\} (.*)$',
                service.get("/metrics").text,
                re.MULTILINE,
            )
        )
        new = {name: float(count) - before.get(name, 0) for name, count in found.items()}
        before.update({name: float(count) for name, count in found.items()})
        return {name: count for name, count in new.items() if count}

    counted()
    return counted


@pytest.fixture
def post(service):
    def post(**body):
        answer = service.post(PATH, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]

    return post


def told(method, values):
    """What the model itself says."""
    values = np.asarray(values)[None]
    lengths = np.array([values.shape[1]], np.int32)
    return jax.device_get(jax.jit(method)(tiny.model(CARD), values, lengths))


def latents(result):
    return np.array(result["latents"], np.float32)


def test_threads_that_share_a_text_read_what_the_model_does(post, counted):
    (result,) = post(inputs=LONG)
    tokens = tiny.MASKED.encode(tiny.MASKED.normalized(LONG))
    assert result["length"] == len(tokens) > NUM_THREADS * SHORT_PART
    expected = told(PerceiverAutoencoder.encode, tokens).latents[0]
    np.testing.assert_allclose(latents(result), expected, atol=ATOL)
    assert counted() == {"latents+part-of-tokens": NUM_THREADS, "latents+joined": 1}


@pytest.mark.parametrize("size", [32, 47, 100, 128])
def test_threads_that_share_vectors_read_what_the_model_does(post, counted, size):
    vectors = np.random.default_rng(size).normal(size=(size, tiny.WIDTH)).astype(np.float32)
    (result,) = post(features=vectors.tolist())
    expected = told(PerceiverAutoencoder.encode_vectors, vectors).latents[0]
    np.testing.assert_allclose(latents(result), expected, atol=ATOL)
    num_parts = len(parts_of(size, NUM_THREADS))
    assert num_parts > 1
    assert counted() == {"latents+part-of-vectors": num_parts, "latents+joined": 1}


def test_threads_that_share_a_text_read_it_back_as_the_model_does(post, counted):
    (result,) = post(inputs=LONG, reconstruct=True)
    tokens = tiny.MASKED.encode(tiny.MASKED.normalized(LONG))
    expected = told(PerceiverAutoencoder.reconstruct, tokens)
    np.testing.assert_allclose(latents(result), expected.latents[0], atol=ATOL)
    assert result["reconstruction"] == tiny.MASKED.decode(expected.tokens[0])
    assert result["fidelity"] == pytest.approx((expected.tokens[0] == tokens).mean())
    assert counted() == {
        "latents+part-of-tokens": NUM_THREADS,
        "latents+joined": 1,
        "latents+part-of-reconstruction": NUM_THREADS,
    }


def test_inputs_that_threads_have_one_each_of_are_not_shared(post, counted):
    together = post(inputs=[LONG, "a", LONG])
    assert counted() == {"latents": 3}
    np.testing.assert_allclose(latents(together[0]), latents(post(inputs=LONG)[0]), atol=ATOL)
    assert post(inputs=["a"]) == [together[1]]


def test_threads_that_others_need_share_nothing(post, counted, monkeypatch):
    monkeypatch.setattr(Batcher, "num_idle", property(lambda _: 1))
    post(inputs=LONG)
    assert counted() == {"latents": 1}


def test_a_short_input_is_not_shared(post, counted):
    post(inputs="the time machine")
    assert counted() == {"latents": 1}


def test_one_thread_shares_nothing_and_compiles_nothing_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(latents_in_parts, "TILE", SHORT_TILE)
    monkeypatch.setattr(latents_in_parts, "SHORTEST_PART", SHORT_PART)
    save_model(tmp_path, CARD, tiny.model(CARD))
    settings = Settings(checkpoints=tmp_path, calls_at_once=1, compilation_cache="off")
    app = create_app(settings)
    with fakes.serving(app) as client:
        assert client.post(PATH, json={"inputs": LONG}).status_code == 200
    compiled = app.state.context.registry.find("perceiver").engine.programs
    assert "latents" in compiled
    assert not any(program.is_part for program in compiled.values())

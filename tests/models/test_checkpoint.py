import dataclasses
import getpass
import json
import os
import shutil
import socket

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from models import checkpoint
from models.blocks import TransformerConfig
from models.checkpoint import (
    CheckpointError,
    digest,
    find_bundle,
    flatten,
    load_model,
    num_params,
    read_card,
    save_model,
)
from models.directories import find_bundles, unreadable_directories
from models.encoder import MaskedLanguageModel
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.vocabulary import BOS, EOS, MASK, Vocabulary

NAMES = ["masked-lm", "reversal", "perceiver", "causal-lm"]
# Every leaf's first axis is a multiple of 8, so that eight devices can share it out.
DIVISIBLE = TransformerConfig(vocab_size=31, embed_dim=24, num_heads=8, num_layers=1, max_seq_len=8)


def params_of(model):
    return flatten(nnx.state(model, nnx.Param))


def assert_identical(expected, got):
    expected, got = params_of(expected), params_of(got)
    assert expected.keys() == got.keys()
    for name, leaf in expected.items():
        assert leaf.dtype == got[name].dtype
        np.testing.assert_array_equal(leaf, got[name], strict=True)


@pytest.fixture
def bundle(tiny_checkpoints, tmp_path):
    """A bundle of one's own, to be spoiled."""
    return shutil.copytree(tiny_checkpoints / "masked-lm" / "1", tmp_path / "masked-lm" / "1")


@pytest.fixture(scope="module")
def translating(cards, tmp_path_factory):
    """A bundle from one vocabulary into another, and what it was saved from."""
    config = EncoderDecoderConfig(
        source_vocab_size=3,
        target_vocab_size=6,
        bos_id=4,
        eos_id=5,
        embed_dim=4,
        num_heads=1,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_source_len=3,
        max_target_len=5,
        source_order="end",
    )
    card = dataclasses.replace(
        cards["reversal"],
        name="translating",
        config=dataclasses.asdict(config),
        vocabulary=Vocabulary(symbols=("a", "b", "c"), specials=()),
        target_vocabulary=Vocabulary(
            symbols=("AA", "B", "K", "S"), specials=(BOS, EOS), separator=" "
        ),
    )
    model = EncoderDecoder(config, rngs=nnx.Rngs(0))
    return save_model(tmp_path_factory.mktemp("translating"), card, model), card, model


def edit(bundle, change):
    """Rewrites ``model.json`` by what ``change`` does to it."""
    path = bundle / "model.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content)))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_loads_bit_for_bit(tiny_checkpoints, tiny_models, cards, name):
    loaded = load_model(find_bundle(tiny_checkpoints, name))
    assert loaded.card == cards[name]
    assert type(loaded.model) is type(tiny_models[name])
    assert_identical(tiny_models[name], loaded.model)
    assert num_params(loaded.model) == num_params(tiny_models[name])


def test_a_bundle_of_two_vocabularies_loads_bit_for_bit(translating):
    bundle, card, model = translating
    loaded = load_model(bundle)
    assert loaded.card == card
    assert loaded.card.target_vocabulary.encode("K AA S").tolist() == [2, 0, 3]
    assert loaded.model.config == model.config
    assert_identical(model, loaded.model)


def test_a_card_that_says_nothing_of_a_target_vocabulary_has_none(bundle, cards):
    edit(bundle, without("target_vocabulary"))
    assert load_model(bundle).card == cards["masked-lm"]


def test_a_loaded_model_answers_as_the_saved_one_did(tiny_checkpoints, masked_lm):
    loaded = load_model(find_bundle(tiny_checkpoints, "masked-lm")).model
    run = jax.jit(lambda model, *arrays: model(*arrays))
    tokens = np.arange(10, dtype=np.int32)[None]
    lengths = np.array([10], np.int32)
    np.testing.assert_array_equal(run(masked_lm, tokens, lengths), run(loaded, tokens, lengths))


@pytest.fixture(scope="module")
def divisible():
    return MaskedLanguageModel(DIVISIBLE, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def eight_devices():
    assert len(jax.devices()) == 8
    return NamedSharding(Mesh(np.array(jax.devices()), ("shard",)), PartitionSpec("shard"))


def divisible_card(cards):
    vocabulary = Vocabulary(symbols=tuple(map(chr, range(65, 65 + 31))), specials=(MASK,))
    config = dataclasses.asdict(DIVISIBLE)
    return dataclasses.replace(cards["masked-lm"], config=config, vocabulary=vocabulary)


def test_a_bundle_saved_from_eight_devices_loads_on_one(tmp_path, cards, divisible, eight_devices):
    graph, state = nnx.split(divisible)
    sharded = nnx.merge(graph, jax.device_put(state, eight_devices))
    assert len(params_of(sharded)["encoder.final_norm.scale"].sharding.device_set) == 8
    loaded = load_model(save_model(tmp_path, divisible_card(cards), sharded)).model
    assert_identical(divisible, loaded)
    first = jax.devices()[0]
    assert all(leaf.devices() == {first} for leaf in params_of(loaded).values())


def test_a_bundle_saved_from_one_device_loads_on_eight(tmp_path, cards, divisible, eight_devices):
    bundle = save_model(tmp_path, divisible_card(cards), divisible)
    loaded = load_model(bundle, eight_devices).model
    assert_identical(divisible, loaded)
    for leaf in params_of(loaded).values():
        assert leaf.sharding == eight_devices
        assert leaf.addressable_shards[0].data.shape[0] == leaf.shape[0] // 8


def test_a_bundle_loads_on_the_device_that_is_named(tiny_checkpoints):
    device = jax.devices()[5]
    bundle = find_bundle(tiny_checkpoints, "masked-lm")
    loaded = load_model(bundle, SingleDeviceSharding(device)).model
    assert all(leaf.devices() == {device} for leaf in params_of(loaded).values())


def test_missing_extra_and_misshapen_leaves_are_named_in_one_error(tmp_path, cards, masked_lm):
    spoiled = nnx.clone(masked_lm)
    encoder = spoiled.encoder
    encoder.stray = nnx.Param(np.zeros(3, np.float32))
    encoder.blocks[1].mlp.stray = nnx.Param(np.zeros(3, np.float32))
    encoder.final_norm.scale = None
    encoder.blocks[0].mlp_norm.scale = None
    encoder.position_embedding.embedding = nnx.Param(np.zeros((7, 16), np.float32))
    encoder.blocks[0].attention_norm.scale = nnx.Param(np.zeros(16, np.float16))
    bundle = save_model(tmp_path, cards["masked-lm"], spoiled)
    with pytest.raises(CheckpointError) as caught:
        load_model(bundle)
    assert str(caught.value) == f"{bundle}: " + "; ".join(
        [
            "missing encoder.blocks.0.mlp_norm.scale",
            "missing encoder.final_norm.scale",
            "extra encoder.blocks.1.mlp.stray",
            "extra encoder.stray",
            "encoder.blocks.0.attention_norm.scale: expected float32[16], got float16[16]",
            "encoder.position_embedding.embedding: expected float32[64, 16], got float32[7, 16]",
        ]
    )


def test_a_bundle_of_another_wiring_is_refused(bundle):
    edit(bundle, lambda content: {**content, "wiring": "decoder"})
    with pytest.raises(CheckpointError, match=r"missing blocks\.0.*extra encoder\.blocks\.0"):
        load_model(bundle)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def files_of_params(bundle):
    return [path for path in (bundle / "params").rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", [flip, truncate, os.remove])
def test_damaged_parameters_are_refused_by_path(bundle, damage):
    """In whatever file they are: a large one may hold what a later one took the place of."""
    for path in files_of_params(bundle):
        if path.parent.name == "d":
            damage(path)
    with pytest.raises(CheckpointError) as caught:
        load_model(bundle)
    assert str(caught.value).startswith(f"{bundle}: ")


def test_damage_to_any_file_is_refused_or_harmless(bundle, masked_lm, tmp_path):
    """Some bytes on disk mean nothing; what loads must be what was saved."""
    files = files_of_params(bundle)
    assert len(files) > 3
    refused = 0
    for path in files:
        for damage in (flip, os.remove):
            kept = path.read_bytes()
            damage(path)
            try:
                assert_identical(masked_lm, load_model(bundle).model)
            except CheckpointError:
                refused += 1
            path.write_bytes(kept)
    assert refused > len(files) / 2
    assert_identical(masked_lm, load_model(bundle).model)


def test_missing_parameters_are_refused(bundle):
    shutil.rmtree(bundle / "params")
    with pytest.raises(CheckpointError, match="params cannot be read"):
        load_model(bundle)


def test_parameters_of_another_digest_are_refused(bundle):
    edit(bundle, lambda content: {**content, "params_sha256": "0" * 64})
    with pytest.raises(CheckpointError) as caught:
        load_model(bundle)
    written = "expected parameters with SHA-256 " + "0" * 64
    assert str(caught.value).startswith(f"{bundle}: {written}, got ")


def test_parameters_of_another_training_are_refused(bundle, tmp_path, cards, masked_lm):
    """Swapped ``params`` of the same shapes: only the digest can tell."""
    other = MaskedLanguageModel(masked_lm.config, rngs=nnx.Rngs(1))
    params = save_model(tmp_path / "other", cards["masked-lm"], other) / "params"
    shutil.rmtree(bundle / "params")
    shutil.copytree(params, bundle / "params")
    with pytest.raises(CheckpointError, match="expected parameters with SHA-256"):
        load_model(bundle)


def changed(**fields):
    return lambda content: {**content, **fields}


def without(name):
    return lambda content: {key: value for key, value in content.items() if key != name}


def reconfigured(**fields):
    return lambda content: {**content, "config": {**content["config"], **fields}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed(format_version=2), "format_version: expected 1, got 2"),
        (without("format_version"), "format_version"),
        (changed(wiring="mamba"), "wiring: expected one of .*'perceiver'.* got 'mamba'"),
        (changed(wiring=["encoder"]), "wiring"),
        (changed(flavour="vanilla"), "flavour"),
        (without("limits"), "limits"),
        (changed(vocabulary=None), "vocabulary"),
        (changed(vocabulary={"symbols": "aab", "specials": [], "normalization": "none"}), "once"),
        (without("params_sha256"), "params_sha256"),
        (reconfigured(num_heads=3), "config: num_heads: expected a divisor of embed_dim 16, got 3"),
        (reconfigured(num_layers=0), "config: expected sizes of at least 1, got num_layers=0"),
        (reconfigured(depth=3), "config: .*depth"),
        (
            reconfigured(vocab_size=30),
            "vocab_size: expected the vocabulary's 28 symbols, or 29 with special tokens, got 30",
        ),
        (reconfigured(embed_dim="16"), "config: "),
        (reconfigured(embed_dim=16.5), "config: "),
        (changed(config=None), "config"),
        (lambda content: [content], "expected the fields of a model"),
        (lambda content: "masked-lm", "expected the fields of a model"),
        (lambda content: None, "expected the fields of a model"),
    ],
)
def test_a_wrong_card_is_refused_by_path_and_reason(bundle, change, reason):
    edit(bundle, change)
    with pytest.raises(CheckpointError, match=reason) as caught:
        load_model(bundle)
    assert str(bundle) in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"source_vocab_size": 4},
            "source_vocab_size: expected the vocabulary's 3 symbols, "
            "or 3 with special tokens, got 4",
        ),
        (
            {"target_vocab_size": 7},
            "target_vocab_size: expected the vocabulary's 4 symbols, "
            "or 6 with special tokens, got 7",
        ),
        ({"target_vocab_size": 5}, "config: eos_id: expected 0..4, got 5"),
    ],
)
def test_sizes_that_do_not_fit_their_vocabularies_are_refused_by_field(
    translating, tmp_path, fields, reason
):
    bundle = shutil.copytree(translating[0], tmp_path / "translating" / "1")
    edit(bundle, reconfigured(**fields))
    with pytest.raises(CheckpointError, match=reason):
        load_model(bundle)


def test_without_a_target_vocabulary_targets_are_of_the_sources_vocabulary(translating, tmp_path):
    bundle = shutil.copytree(translating[0], tmp_path / "translating" / "1")
    edit(bundle, without("target_vocabulary"))
    with pytest.raises(CheckpointError, match=r"target_vocab_size: expected the .* 3 symbols"):
        load_model(bundle)


@pytest.mark.parametrize(
    "vocabulary", [5, {}, {"symbols": ["a", "a"], "specials": [], "normalization": "none"}]
)
def test_a_damaged_target_vocabulary_is_refused(translating, tmp_path, vocabulary):
    bundle = shutil.copytree(translating[0], tmp_path / "translating" / "1")
    edit(bundle, changed(target_vocabulary=vocabulary))
    with pytest.raises(CheckpointError, match=r"expected the fields of a model: .*(vocab|symbols)"):
        read_card(bundle)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"format_version": 1,}'])
def test_a_card_that_is_no_json_is_refused_by_path(bundle, content):
    (bundle / "model.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="expected the fields of a model") as caught:
        read_card(bundle)
    assert str(bundle / "model.json") in str(caught.value)


def test_a_missing_card_is_refused_by_path(tmp_path):
    with pytest.raises(CheckpointError, match=r"expected a readable model\.json") as caught:
        load_model(tmp_path / "nothing")
    assert str(tmp_path / "nothing" / "model.json") in str(caught.value)


def test_the_highest_version_wins_by_number(tmp_path):
    for version in ("1", "9", "10", "two", ".saving-x", "11.bak", "²"):
        (tmp_path / "model" / version).mkdir(parents=True)
        (tmp_path / "model" / version / "model.json").write_text("{}")
    (tmp_path / "model" / "12").mkdir()
    assert find_bundles(tmp_path) == {"model": tmp_path / "model" / "10"}
    assert find_bundle(tmp_path, "model").name == "10"


def test_directories_that_are_shut_are_told_down_to_those_of_versions(tmp_path, monkeypatch):
    for directory in ("model/1/params", "model/2", "lost+found"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "notes").write_text("")
    assert unreadable_directories(tmp_path) == []
    shut = {tmp_path / "lost+found", tmp_path / "model" / "2", tmp_path / "model" / "1" / "params"}
    monkeypatch.setattr(os, "access", lambda path, mode: path not in shut)
    assert unreadable_directories(tmp_path) == [tmp_path / "lost+found", tmp_path / "model" / "2"]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert unreadable_directories(tmp_path)[0] == tmp_path


def test_a_name_that_is_missing_is_answered_with_those_there_are(tiny_checkpoints, tmp_path):
    with pytest.raises(CheckpointError, match="'gpt', found causal-lm, masked-lm, perceiver"):
        find_bundle(tiny_checkpoints, "gpt")
    with pytest.raises(CheckpointError, match="'gpt', found none"):
        find_bundle(tmp_path / "nowhere", "gpt")


def test_no_path_user_or_host_is_in_any_file_of_a_bundle(tmp_path, cards, masked_lm):
    bundle = save_model(tmp_path / "some-directory", cards["masked-lm"], masked_lm)
    user, host = getpass.getuser(), socket.gethostname()
    secrets = [str(tmp_path), "some-directory", os.getcwd(), f"/{user}/", f"@{host}"]
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert bundle / "model.json" in files
    for path in files:
        content = path.read_bytes()
        found = [secret for secret in secrets if secret.encode() in content]
        assert not found, f"{path.relative_to(bundle)} holds {found}"


@pytest.mark.parametrize("part", ["digest", "write_card"])
def test_an_interrupted_saving_leaves_nothing_behind(tmp_path, cards, masked_lm, monkeypatch, part):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, part, interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_model(tmp_path, cards["masked-lm"], masked_lm)
    assert find_bundles(tmp_path) == {}
    assert list((tmp_path / "masked-lm").iterdir()) == []


def test_an_interrupted_saving_leaves_the_older_bundle_alone(
    tmp_path, cards, masked_lm, monkeypatch
):
    bundle = save_model(tmp_path, cards["masked-lm"], masked_lm)
    other = MaskedLanguageModel(masked_lm.config, rngs=nnx.Rngs(1))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_card", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_model(tmp_path, cards["masked-lm"], other)
    assert_identical(masked_lm, load_model(bundle).model)
    assert_identical(other, load_model(save_model(tmp_path, cards["masked-lm"], other)).model)


def test_the_remains_of_a_killed_saving_are_not_taken_for_a_bundle(tmp_path, bundle):
    """A killed process cleans nothing up: its staged bundle stays in a hidden directory."""
    shutil.copytree(bundle, tmp_path / "masked-lm" / ".saving-abc" / "bundle")
    assert find_bundles(tmp_path) == {"masked-lm": bundle}


def test_the_digest_is_of_names_dtypes_shapes_and_bytes():
    leaf = np.arange(6, dtype=np.float32)
    base = digest({"a": leaf, "b": leaf})
    assert digest({"b": leaf, "a": leaf}) == base
    others = [
        {"a": leaf, "c": leaf},
        {"a": leaf, "b": leaf.reshape(2, 3)},
        {"a": leaf, "b": leaf.view(np.int32)},
        {"a": leaf, "b": leaf + 1},
        {"a": leaf},
    ]
    assert base not in map(digest, others)

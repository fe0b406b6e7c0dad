"""A model on disk: ``NAME/VERSION/`` with ``model.json`` and, through Orbax, ``params/``.

``model.json`` says how to build the model, how to prepare its input, where it came from and what
was measured of it; ``params/`` holds parameters only. Nothing is ever unpickled. Loading is
strict: missing, extra and misshapen leaves are collected and named in one error, and the digest
of what was read must be the one that was written. Arrays go to the sharding that the caller
names, so a bundle loads on any number of devices, whatever it was saved on.
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from models.directories import find_bundles
from models.vocabulary import Vocabulary
from models.wirings import WIRINGS

FORMAT_VERSION = 1


class CheckpointError(ValueError):
    """A bundle cannot be loaded; the message says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """All of ``model.json`` but the digest.

    ``target_vocabulary`` is None where outputs have the vocabulary of inputs. ``created`` is when
    it was trained, in seconds of Unix time; ``limits`` bounds the input (``min_len`` and
    ``max_len`` in tokens); ``recipe`` says how it was trained, ``corpus`` on
    what, ``figures`` what was measured of it.
    """

    name: str
    version: int
    created: int
    wiring: str
    config: dict[str, Any]
    vocabulary: Vocabulary
    target_vocabulary: Vocabulary | None = None
    limits: dict[str, int]
    task: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    corpus: dict[str, Any] = field(default_factory=dict)
    library_versions: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A loaded model with its card."""

    card: ModelCard
    model: nnx.Module


def flatten(params: nnx.State) -> dict[str, Any]:
    """The leaves of ``params`` by path, as in ``encoder.blocks.0.mlp_norm.scale``."""
    leaves = nnx.to_flat_state(params)
    return {".".join(map(str, path)): variable.get_value() for path, variable in leaves}


def digest(leaves: dict[str, Any]) -> str:
    """SHA-256 over name, dtype, shape and bytes of every leaf, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(leaves):
        leaf = np.ascontiguousarray(jax.device_get(leaves[name]))
        total.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        total.update(leaf.tobytes())
    return total.hexdigest()


def save_model(
    root: Path,
    card: ModelCard,
    model: nnx.Module,
    complete: Callable[[Path], None] = lambda bundle: None,
) -> Path:
    """Writes the bundle under ``root`` and gives its directory, ``root/NAME/VERSION``.

    The bundle appears under its name only when it is whole, with whatever ``complete`` adds to its
    directory; an older one of that version is replaced.
    """
    # As numpy, so that nothing of the devices or processes they were trained on comes along.
    leaves = jax.device_get(flatten(nnx.state(model, nnx.Param)))
    target = root / card.name / str(card.version)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".saving-") as scratch:
        staged = Path(scratch).resolve() / "bundle"
        staged.mkdir()
        with _checkpointer() as checkpointer:
            checkpointer.save(staged / "params", leaves)
        # Orbax notes the directory that it wrote to, which is nobody's business and is never read.
        (staged / "params" / "commit_success.txt").unlink(missing_ok=True)
        write_card(staged, card, digest(leaves))
        complete(staged)
        if target.exists():
            shutil.rmtree(target)
        os.replace(staged, target)
    return target


def _checkpointer() -> ocp.StandardCheckpointer:
    """An Orbax checkpointer of this process alone, whatever processes it trains with."""
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(), active_processes={jax.process_index()}
    )
    return ocp.StandardCheckpointer(multiprocessing_options=alone)


def write_card(bundle: Path, card: ModelCard, params_sha256: str) -> None:
    """Writes ``model.json`` into a bundle's directory."""
    content = {
        "format_version": FORMAT_VERSION,
        **asdict(card),
        "vocabulary": card.vocabulary.to_json(),
        "target_vocabulary": card.target_vocabulary and card.target_vocabulary.to_json(),
        "params_sha256": params_sha256,
    }
    staged = bundle / "model.json.part"
    staged.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(staged, bundle / "model.json")


def read_card(bundle: Path) -> tuple[ModelCard, str]:
    """The card of a bundle and the digest that its parameters must have.

    Raises:
        CheckpointError: if ``model.json`` is missing, malformed or of another format.
    """
    path = bundle / "model.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (found := content.pop("format_version")) != FORMAT_VERSION:
            raise ValueError(f"format_version: expected {FORMAT_VERSION}, got {found!r}")
        sha256 = content.pop("params_sha256")
        vocabulary = Vocabulary.from_json(content.pop("vocabulary"))
        other = content.pop("target_vocabulary", None)
        target_vocabulary = None if other is None else Vocabulary.from_json(other)
        card = ModelCard(vocabulary=vocabulary, target_vocabulary=target_vocabulary, **content)
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected a readable model.json: {error.strerror}"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: expected the fields of a model: {error}") from error
    if card.wiring not in tuple(WIRINGS):
        raise CheckpointError(
            f"{path}: wiring: expected one of {sorted(WIRINGS)}, got {card.wiring!r}"
        )
    return card, sha256


def load_model(bundle: Path, sharding: jax.sharding.Sharding | None = None) -> Bundle:
    """The model in the directory ``bundle``, its parameters placed by ``sharding``.

    By default they go to the first device whole.

    Raises:
        CheckpointError: if a file is missing or damaged, or the parameters are not exactly those
            that the config asks for.
    """
    card, expected_sha256 = read_card(bundle)
    sharding = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wiring = WIRINGS[card.wiring]
    try:
        config = wiring.config(**card.config)
        model = nnx.eval_shape(lambda: wiring.model(config, rngs=_SameKey()))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{bundle}: config: {error}") from error
    _require_vocabularies(bundle, card)
    graph, abstract = nnx.split(model)
    wanted = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for name, leaf in flatten(abstract).items()
    }
    leaves = _restore(bundle, wanted)
    if (found := digest(leaves)) != expected_sha256:
        raise CheckpointError(
            f"{bundle}: expected parameters with SHA-256 {expected_sha256}, got {found}"
        )
    for path, variable in nnx.to_flat_state(abstract):
        variable.set_value(leaves[".".join(map(str, path))])
    return Bundle(card, nnx.merge(graph, abstract))


class _SameKey(nnx.Rngs):
    """Draws for parameters of which only the shapes are asked: one key for all.

    Counting draws takes Flax as long as all else, where it is traced.
    """

    def __init__(self) -> None:
        self.key = jax.random.key(0)

    def params(self) -> jax.Array:
        return self.key


def _require_vocabularies(bundle: Path, card: ModelCard) -> None:
    for field_name, vocabulary in (
        ("vocab_size", card.vocabulary),
        ("source_vocab_size", card.vocabulary),
        ("target_vocab_size", card.target_vocabulary or card.vocabulary),
    ):
        # Special tokens are predicted by some wirings and not by others.
        sizes = (len(vocabulary.symbols), len(vocabulary.tokens))
        if (size := card.config.get(field_name, sizes[0])) not in sizes:
            raise CheckpointError(
                f"{bundle}: config: {field_name}: expected the vocabulary's {sizes[0]} symbols, or "
                f"{sizes[1]} with special tokens, got {size}"
            )


def _restore(bundle: Path, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    path = (bundle / "params").resolve()
    # Orbax documents no closed set of errors for damaged files; whatever it raises means the same.
    try:
        with _checkpointer() as checkpointer:
            stored = checkpointer.metadata(path).item_metadata.tree
            _require_same_leaves(bundle, wanted, stored)
            return checkpointer.restore(path, wanted)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{bundle}: params cannot be read: {error}") from error


def _require_same_leaves(bundle: Path, wanted: dict[str, Any], stored: dict[str, Any]) -> None:
    faults = [f"missing {name}" for name in sorted(wanted.keys() - stored.keys())]
    faults += [f"extra {name}" for name in sorted(stored.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & stored.keys()):
        expected, got = wanted[name], stored[name]
        if expected.shape != got.shape or expected.dtype != got.dtype:
            faults.append(
                f"{name}: expected {expected.dtype}{list(expected.shape)}, "
                f"got {got.dtype}{list(got.shape)}"
            )
    if faults:
        raise CheckpointError(f"{bundle}: " + "; ".join(faults))


def num_params(model: nnx.Module) -> int:
    """How many numbers the model learned."""
    return sum(math.prod(leaf.shape) for leaf in flatten(nnx.state(model, nnx.Param)).values())


def find_bundle(root: Path, name: str) -> Path:
    """The directory of the highest version of ``name`` under ``root``.

    Raises:
        CheckpointError: if there is none.
    """
    bundles = find_bundles(root)
    if name not in bundles:
        listed = ", ".join(sorted(bundles)) or "none"
        raise CheckpointError(f"{root}: expected a model named {name!r}, found {listed}")
    return bundles[name]

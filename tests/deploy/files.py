"""Reads what is deployed: stages of the Dockerfile, YAML, and manifests with their patches."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes"
MONITORING = ROOT / "deploy" / "monitoring"
# By what the items of a list are told apart when one manifest is laid over another.
KEYS = ("name", "mountPath", "key")


@dataclass
class Stage:
    """One stage of the Dockerfile: where it starts from, and its instructions in order."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, instruction):
        return [value for name, value in self.instructions if name == instruction]


def stages():
    """The stages of the Dockerfile by name."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found = {}
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        instruction, _, value = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = value.partition(" AS ")
            stage = found[name] = Stage(name, base)
        elif instruction and found:
            stage.instructions.append((instruction, value.strip()))
    return found


def lineage(name):
    """All instructions that make the image of a stage, those of the stages below it first."""
    every = stages()
    stage = every[name]
    below = lineage(stage.base).instructions if stage.base in every else []
    return Stage(name, stage.base, [*below, *stage.instructions])


def environment(stage):
    """What ENV sets."""
    return dict(pair.split("=", 1) for value in stage.values("ENV") for pair in value.split())


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def manifests(directory):
    """The manifests of a directory by the name of their file, without the kustomization."""
    paths = sorted(directory.glob("*.yaml"))
    return {path.name: load(path) for path in paths if path.name != "kustomization.yaml"}


def laid_over(base, patch):
    """A manifest with a patch laid over it as kustomize does: items of lists are told by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {k: laid_over(base[k], v) if k in base else v for k, v in patch.items()}
    if isinstance(base, list) and all(isinstance(item, dict) for item in [*base, *patch]):
        merged = {_key(item): item for item in base}
        for item in patch:
            key = _key(item)
            merged[key] = laid_over(merged[key], item) if key in merged else item
        return list(merged.values())
    return patch


def _key(item):
    return next((name, item[name]) for name in KEYS if name in item)

"""What the Dockerfile promises, without an engine to build it."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.files import ROOT, environment, lineage, stages

LOCKS = ("serve", "otel", "cuda", "train")
# What training, tests and development need and serving does not. (flax itself imports optax.)
NOT_SERVED = {"matplotlib", "tqdm", "pytest", "hypothesis", "ruff", "pyright", "uv", "beartype"}
RUNNING = ("serve", "train")


@pytest.mark.skipif(sys.platform == "win32", reason="hadolint has no package for Windows")
def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    assert hadolint, "make install brings it"
    found = subprocess.run(
        [hadolint, "--failure-threshold", "style", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_the_image_that_serves_is_what_is_built_by_default():
    assert list(stages())[-1] == "serve"
    assert stages()["serving"].values("ARG") == ["VARIANT=serve"]


@pytest.mark.parametrize("name", RUNNING)
def test_processes_run_as_a_user_of_fixed_number_without_privileges(name):
    assert lineage(name).values("USER")[-1] == "10001:10001"


@pytest.mark.parametrize("name", RUNNING)
def test_signals_reach_python_as_no_shell_stands_before_it(name):
    (entry_point,) = lineage(name).values("ENTRYPOINT")
    python, *arguments = json.loads(entry_point)
    assert python == "/opt/venv/bin/python"
    assert arguments == ["-m", {"serve": "service", "train": "training"}[name]]


def test_the_health_check_asks_readyz_by_python_alone():
    (check,) = lineage("serve").values("HEALTHCHECK")
    assert json.loads(check[check.index("[") :]) == ["/opt/venv/bin/python", "-m", "service.probe"]
    assert '"/readyz"' in (ROOT / "service" / "probe.py").read_text()


def test_the_port_that_is_exposed_is_the_one_it_listens_on_from_everywhere():
    serve = lineage("serve")
    assert environment(serve)["TRIWIRE_HOST"] == "0.0.0.0"
    assert serve.values("EXPOSE") == [environment(serve)["TRIWIRE_PORT"]]


@pytest.mark.parametrize("name", RUNNING)
def test_what_is_written_goes_to_volumes_that_belong_to_the_user(name):
    stage = lineage(name)
    (volumes,) = stage.values("VOLUME")
    assert json.loads(volumes) == ["/var/cache/triwire", "/var/lib/triwire"]
    (made,) = [run for run in stage.values("RUN") if "install --directory" in run]
    assert "--owner 10001" in made
    assert all(volume in made.split() for volume in json.loads(volumes))
    # Where the caches of the service and of training are, unless one names another place.
    assert environment(stage)["XDG_CACHE_HOME"] == "/var/cache"
    assert not [copy for copy in stage.values("COPY") if "--chown" in copy]


def test_dependencies_are_locked_and_lie_in_a_layer_of_their_own():
    for name, lock in {"serving": "requirements-${VARIANT}.lock", "training": None}.items():
        copied = lineage(name).values("COPY")
        assert len(copied) == 1, "code that is copied here would install anew with every change"
        assert copied[0].startswith(lock or "requirements-train.lock")
        assert "PIP_REQUIRE_HASHES=1" in " ".join(lineage(name).values("ENV"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_has_hashes_and_no_address(lock):
    text = (ROOT / f"requirements-{lock}.lock").read_text()
    packages = re.findall(r"^[a-z].*?(?=^[a-z]|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert len(packages) > 20
    for package in packages:
        assert "==" in package, package
        assert "--hash=sha256:" in package, package
    assert "://" not in text


def locked(lock):
    text = (ROOT / f"requirements-{lock}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, flags=re.MULTILINE))


def test_the_image_holds_nothing_that_only_training_or_tests_need():
    assert not locked("serve").keys() & NOT_SERVED
    copied = " ".join(lineage("serve").values("COPY"))
    assert "training" not in copied
    assert "tests" not in copied


def test_code_and_models_can_be_read_by_everybody_whatever_the_checkout_allows():
    """COPY keeps modes, and under a umask of 077 only the owner of the checkout may read."""
    sources = stages()["sources"]
    assert sources.instructions[-1] == ("RUN", "chmod -R u=rwX,go=rX .")
    for name in RUNNING:
        taken = [copy for copy in lineage(name).values("COPY") if "/opt/venv" not in copy]
        assert all(copy.startswith("--from=sources /app/") for copy in taken)


def test_the_image_that_serves_can_ask_itself():
    """``python -m triwire`` in its working directory, with what the client needs."""
    assert "--from=sources /app/triwire triwire" in lineage("serve").values("COPY")
    assert lineage("serve").values("WORKDIR")[-1] == "/app"
    assert locked("serve").keys() >= {"httpx2", "numpy"}


def test_the_cuda_variant_has_the_plugin_of_the_same_jax_and_everything_else_alike():
    cuda, serve = locked("cuda"), locked("serve")
    assert serve.items() <= cuda.items()
    assert cuda["jax-cuda13-plugin"] == cuda["jax-cuda13-pjrt"] == cuda["jax"]


def test_only_what_is_copied_gets_into_the_context_of_the_build():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = set()
    for stage in stages().values():
        for copy in stage.values("COPY"):
            if not copy.startswith("--from"):
                copied.add(copy.split()[0])
    assert "requirements-${VARIANT}.lock" in copied
    copied.remove("requirements-${VARIANT}.lock")
    copied |= {f"requirements-{variant}.lock" for variant in ("serve", "otel", "cuda")}
    assert let_in == copied
    assert all((ROOT / name).exists() for name in let_in)


def test_nothing_secret_is_baked_in():
    told = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"(?i)api_key|password|token|secret", told)


def test_the_labels_tell_the_version_of_the_project():
    (labels,) = lineage("serve").values("LABEL")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'image.version="{project["version"]}"' in labels
    assert 'image.revision="${REVISION}"' in labels

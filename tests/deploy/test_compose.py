"""What ``docker compose`` is told, against the schema of the specification and what we promise."""

import subprocess
import sys

import pytest

from service.settings import Settings
from tests.deploy.files import ROOT, load, stages

FILES = ("docker-compose.yml", "docker-compose.keys.yml")
COMPOSE = load(ROOT / FILES[0])
SERVICES = COMPOSE["services"]
OURS = ("triwire", "triwire-gpu", "models", "train")
TIME_TO_END_S = 5


@pytest.mark.parametrize("name", FILES)
def test_a_file_keeps_to_the_schema_of_the_specification(name):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    found = subprocess.run([*command, ROOT / name], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_up_alone_starts_the_service_and_what_it_needs():
    assert {name for name, told in SERVICES.items() if "profiles" not in told} == {
        "triwire",
        "models",
    }
    profiles = {p for told in SERVICES.values() for p in told.get("profiles", ())}
    assert profiles == {"train", "gpu", "monitoring"}


def test_the_service_is_on_port_8000_of_this_machine_and_of_no_other():
    assert SERVICES["triwire"]["ports"] == ["127.0.0.1:8000:8000"]
    published = [port for told in SERVICES.values() for port in told.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_read_only_without_capabilities_and_bounded(name):
    told = SERVICES[name]
    assert told["read_only"] is True
    assert told["cap_drop"] == ["ALL"]
    assert told["security_opt"] == ["no-new-privileges:true"]
    assert told["deploy"]["resources"]["limits"]["memory"]
    assert told["logging"]["options"].keys() == {"max-size", "max-file"}
    assert not told.get("privileged")
    assert told["restart"] in ("unless-stopped", "no")


@pytest.mark.parametrize("name", ["triwire", "triwire-gpu"])
def test_the_service_has_time_to_finish_what_is_under_way(name):
    told = SERVICES[name]
    settings = settings_of(told["environment"])
    grace_s = float(told["stop_grace_period"].removesuffix("s"))
    assert grace_s >= settings.shutdown_grace_s + settings.drain_timeout_s + TIME_TO_END_S
    assert settings.drain_timeout_s >= settings.request_timeout_s


def settings_of(environment):
    given = {
        name.removeprefix("TRIWIRE_").lower(): value
        for name, value in environment.items()
        if name.startswith("TRIWIRE_")
    }
    assert given.keys() <= Settings.model_fields.keys()
    return Settings(**given)


def test_what_is_trained_goes_where_the_service_loads_from_and_cannot_write():
    settings = settings_of(SERVICES["triwire"]["environment"])
    assert str(settings.checkpoints) == "/var/lib/triwire/checkpoints"
    assert "models:/var/lib/triwire:ro" in SERVICES["triwire"]["volumes"]
    assert "models:/var/lib/triwire" in SERVICES["train"]["volumes"]
    assert SERVICES["models"]["command"] == ["/app/checkpoints", str(settings.checkpoints)]
    # The recipe writes to /app/checkpoints, as in a checkout.
    (link,) = [run for run in stages()["train"].values("RUN") if run.startswith("ln ")]
    assert link.split() == ["ln", "-s", str(settings.checkpoints), "checkpoints"]


def test_nothing_starts_before_what_it_needs_is_ready():
    waits = {
        name: {on: how["condition"] for on, how in told.get("depends_on", {}).items()}
        for name, told in SERVICES.items()
    }
    completed = {"models": "service_completed_successfully"}
    assert waits["triwire"] == waits["triwire-gpu"] == waits["train"] == completed
    assert waits["prometheus"] == {"triwire": "service_healthy"}
    assert waits["grafana"] == {"prometheus": "service_healthy"}
    # That the service is healthy is said by its image.
    assert "healthcheck" not in SERVICES["triwire"]
    assert "healthcheck" in SERVICES["prometheus"]


def test_every_volume_that_is_used_is_declared_and_every_file_exists():
    for told in SERVICES.values():
        for volume in told.get("volumes", ()):
            source = volume.split(":")[0]
            assert (
                (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
            )


def test_stages_and_variants_that_are_built_exist():
    builds = [told["build"] for told in SERVICES.values() if "build" in told]
    for build in (build for build in builds if isinstance(build, dict)):
        if "target" in build:
            assert build["target"] in stages()
        for variant in [build.get("args", {}).get("VARIANT")]:
            assert variant is None or (ROOT / f"requirements-{variant}.lock").exists()


def test_an_image_is_built_by_one_service_that_is_there_whenever_another_starts():
    """Two that build it do so at once, and the second may fail as the image ``already exists``."""
    builders = [(told["image"], name) for name, told in SERVICES.items() if "build" in told]
    assert len(dict(builders)) == len(builders)
    for name in set(OURS) - {builder for _, builder in builders}:
        assert dict(builders)[SERVICES[name]["image"]] in SERVICES[name]["depends_on"]
        assert SERVICES[name]["pull_policy"] == "never"


def test_images_of_others_have_a_version():
    for name in SERVICES.keys() - set(OURS):
        _, _, version = SERVICES[name]["image"].partition(":")
        assert version not in ("", "latest"), name


def test_keys_come_as_a_secret_and_stand_in_no_file_and_no_variable():
    keys = load(ROOT / FILES[1])
    for name in ("triwire", "triwire-gpu"):
        told = keys["services"][name]
        assert told["secrets"] == ["api_keys"]
        settings = settings_of(told["environment"])
        assert str(settings.api_keys_file) == "/run/secrets/api_keys"
    assert keys["secrets"]["api_keys"]["file"].startswith("${API_KEYS_FILE:?")
    assert not [n for told in SERVICES.values() for n in told.get("environment", ()) if "KEY" in n]


@pytest.mark.parametrize("page", ["docs/containers.md", *FILES])
def test_keys_are_set_up_for_every_command_and_not_for_one(page):
    """An ``up`` that is not told of the second file starts the service anew, and open to all."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"COMPOSE_FILE={':'.join(FILES)}" in text
    assert f"-f {FILES[1]}" not in text


def test_the_gpu_is_reserved_and_asked_for():
    told = SERVICES["triwire-gpu"]
    (device,) = told["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert settings_of(told["environment"]).device == "gpu"

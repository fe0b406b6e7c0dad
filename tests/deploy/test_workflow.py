"""The workflow for continuous integration: its schema, and what it may and may not do."""

import re
import subprocess
import sys

from tests.deploy.files import ROOT, load

PATH = ROOT / ".github" / "workflows" / "ci.yml"
TEXT = PATH.read_text(encoding="utf-8")
JOBS = load(PATH)["jobs"]
RUNS = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_it_keeps_to_the_schema():
    command = [sys.executable, "-m", "check_jsonschema"]
    schema = ["--builtin-schema", "vendor.github-workflows"]
    found = subprocess.run([*command, *schema, PATH], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_actions_are_pinned_to_a_commit_and_name_its_version():
    uses = re.findall(r"uses: (.*)", TEXT)
    assert uses
    for use in uses:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use
    # One action is pinned to one commit everywhere.
    assert len(set(uses)) == len({use.split("@")[0] for use in uses})


def test_it_needs_no_secret_and_may_only_read():
    assert "secrets." not in TEXT
    assert load(PATH)["permissions"] == {"contents": "read"}
    assert TEXT.count("persist-credentials: false") == TEXT.count("actions/checkout@")


def test_it_runs_the_targets_of_the_makefile():
    targets = {target for run in RUNS for target in re.findall(r"\bmake ([a-z-]+)", run)}
    assert targets >= {"check", "test", "audit", "sbom"}
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE), target


def test_every_lock_that_goes_into_an_image_is_audited_and_listed():
    (locks,) = re.findall(r"^LOCKS := (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert set(locks.split()) == {"serve", "otel", "cuda", "train"}
    for target in ("audit", "sbom"):
        (body,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)
        assert "$(LOCKS)" in body


def test_no_job_runs_for_ever():
    assert all(job["timeout-minutes"] <= 60 for job in JOBS.values())


def test_the_image_is_built_started_asked_and_ended():
    told = "\n".join(step.get("run", "") for step in JOBS["image"]["steps"])
    for part in ("compose build", "up --detach --wait", "tests/test_docs.py", "compose stop"):
        assert part in told

"""A run that was ended anywhere is taken up and ends as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NUM_STEPS = 800
SAVE_EVERY = 50
TIMEOUT_S = 240


def start(tmp_path, run, *options):
    command = [sys.executable, "-m", "training", "reversal", "--preset", "debug"]
    command += ["--num-steps", str(NUM_STEPS), "--save-every", str(SAVE_EVERY)]
    command += ["--cpu-threads", "2"]
    command += ["--out", str(tmp_path / run), "--run-dir", str(tmp_path / f"run-{run}"), *options]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process):
    output, _ = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, output.decode()


def num_records(tmp_path, run):
    path = tmp_path / f"run-{run}" / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def interrupt(process, tmp_path, run, after, number):
    """Sends a signal once that many steps are on record; gives how many were."""
    deadline = time.monotonic() + TIMEOUT_S
    while num_records(tmp_path, run) < after and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.01)
    process.send_signal(number)
    return num_records(tmp_path, run)


def digest(tmp_path, run):
    card = json.loads((tmp_path / run / "reversal" / "1" / "model.json").read_text())
    return card["params_sha256"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    status, output = finish(start(directory, "whole"))
    assert status == 0, output
    return digest(directory, "whole"), num_losses(directory, "whole")


def num_losses(tmp_path, run):
    lines = (tmp_path / f"run-{run}" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_a_killed_run_ends_bit_for_bit_as_an_uninterrupted_one(tmp_path, uninterrupted):
    process = start(tmp_path, "cut")
    after = random.Random().randrange(SAVE_EVERY, NUM_STEPS // 2)
    reached = interrupt(process, tmp_path, "cut", after, signal.SIGKILL)
    assert finish(process)[0] == -signal.SIGKILL, f"killed too late, at step {reached}"
    status, output = finish(start(tmp_path, "cut", "--resume"))
    assert status == 0, output
    assert (digest(tmp_path, "cut"), num_losses(tmp_path, "cut")) == uninterrupted


def test_sigterm_saves_says_how_to_go_on_and_exits_143(tmp_path, uninterrupted):
    process = start(tmp_path, "cut")
    interrupt(process, tmp_path, "cut", 70, signal.SIGTERM)
    status, output = finish(process)
    assert status == 128 + signal.SIGTERM, output
    stopped = num_records(tmp_path, "cut")
    assert f"stopped by a signal after step {stopped}; go on with --resume" in output
    assert str(stopped) in {path.name for path in (tmp_path / "run-cut" / "state").iterdir()}
    status, output = finish(start(tmp_path, "cut", "--resume"))
    assert status == 0, output
    assert (digest(tmp_path, "cut"), num_losses(tmp_path, "cut")) == uninterrupted

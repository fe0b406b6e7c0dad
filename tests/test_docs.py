"""The README and the pages under docs are true: their examples give what is printed there.

``README_ADDRESS`` names one that runs already, as a container; else one is started.
"""

import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "localhost:8000"
# Another CPU sums in another order; scores near 0 or 1 move far less than this.
SCORE_TOLERANCE = 2e-3
VOLATILE = {"id", "created", "request_id"}
START_TIMEOUT_S = 600

CLIENT = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
# Pages with examples in Python, and what they print behind them where they print anything.
PAGES = ["http-api.md", "hugging-face.md", "openai.md"]
PYTHON = r"```python\n(.*?)```\n(?:```text\n(.*?)```)?"

EXAMPLES = re.findall(r"```sh\n(curl .*?)```\s*```json\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = re.findall(r"```console\n\$ (.*?)\n(.*?)```", CLIENT, flags=re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", CLIENT, flags=re.DOTALL)
BARS = set("█▉▊▋▌▍▎▏")


@pytest.fixture(scope="module")
def address():
    if given := os.environ.get("README_ADDRESS"):
        yield given
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    # Nothing is left in the home of whoever runs the tests. Batches of one take half the compiling.
    environment |= {
        "TRIWIRE_COMPILATION_CACHE": "off",
        "TRIWIRE_SHUTDOWN_GRACE_S": "0",
        "TRIWIRE_GRIDS": json.dumps({name: {"batch_sizes": [1]} for name in _programs()}),
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "service", "--port", str(port)], cwd=ROOT, env=environment
    )
    try:
        _wait_until_ready(server, port)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        assert server.wait(timeout=30) in (0, -15)


def _programs():
    """The names of everything that serving the shipped models compiles."""
    from models.checkpoint import read_card
    from models.directories import find_bundles
    from service.tasks import PROGRAMS

    cards = [read_card(path)[0] for path in find_bundles(ROOT / "checkpoints").values()]
    return {program.name for card in cards for program in PROGRAMS[card.wiring](card)}


def _wait_until_ready(server, port):
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended before it was ready"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    pytest.fail("the server was not ready in time")


def test_the_readme_has_an_example_for_every_task():
    commands = " ".join(command for command, _ in EXAMPLES)
    for path in ("fill-mask", "decode", "latents", "embeddings", "completions", "models"):
        assert f"/v1/{path}" in commands


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("command", "printed"), EXAMPLES)
def test_a_readme_example_answers_what_is_printed(address, command, printed):
    shell = command.replace(ADDRESS, address).replace("python3", sys.executable)
    answer = subprocess.run(
        shell, shell=True, capture_output=True, text=True, timeout=60, check=True
    )
    assert _alike(json.loads(answer.stdout), json.loads(printed)), answer.stdout


def test_the_examples_of_the_open_inference_protocol_print_what_stands_there(address):
    """NVIDIA's client, unmodified, in one session, as the page has it."""
    page = (ROOT / "docs" / "open-inference-protocol.md").read_text(encoding="utf-8")
    steps = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", page, flags=re.DOTALL)
    assert len(steps) == page.count("```python") == 6
    script = "\nprint('---')\n".join(code for code, _ in steps).replace(ADDRESS, address)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    printed = ran.stdout.split("---\n")
    assert printed == [text for _, text in steps], ran.stdout


@pytest.mark.parametrize("page", PAGES)
def test_the_python_examples_of_a_page_print_what_is_printed_there(address, page):
    """In one go, as an example may use what those before it have defined."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    examples = re.findall(PYTHON, text, flags=re.DOTALL)
    assert examples
    names = {}
    for code, printed in examples:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code.replace(ADDRESS, address), page, "exec"), names)
        assert output.getvalue() == printed, code


def _alike(got, printed):
    if isinstance(printed, dict):
        return got.keys() == printed.keys() and all(
            name in VOLATILE or _alike(got[name], printed[name]) for name in printed
        )
    if isinstance(printed, list):
        return len(got) == len(printed) and all(map(_alike, got, printed))
    if isinstance(printed, float):
        return got == pytest.approx(printed, abs=SCORE_TOLERANCE)
    return got == printed


@pytest.fixture(scope="module")
def shell(address, tmp_path_factory):
    """What a command prints where ``triwire`` is on the path and asks the live server."""
    binaries = tmp_path_factory.mktemp("bin")
    triwire = binaries / "triwire"
    triwire.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m triwire "$@"\n')
    triwire.chmod(0o755)
    variables = {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
        "TRIWIRE_URL": f"http://{address}",
    }

    def run(command):
        return subprocess.run(
            command,
            env={k: v for k, v in os.environ.items() if k != "TRIWIRE_API_KEY"} | variables,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=True,
        ).stdout

    return run


@pytest.mark.parametrize(("command", "printed"), COMMANDS)
def test_a_command_of_the_client_page_prints_what_is_shown(shell, command, printed):
    printed_now = shell(["sh", "-c", command])
    assert _read_alike(printed_now, printed), printed_now


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_a_program_of_the_client_page_prints_what_is_shown(shell, program, printed):
    printed_now = shell([sys.executable, "-c", program])
    assert _read_alike(printed_now, printed), printed_now


def test_the_client_page_has_examples_of_both_kinds():
    assert len(COMMANDS) >= 4
    assert CLIENT.count("```console") == len(COMMANDS)
    assert len(PROGRAMS) >= 4
    assert CLIENT.count("```python") == len(PROGRAMS)


def _read_alike(got, printed):
    """Whether texts agree word by word, numbers within the tolerance, bars within an eighth."""
    lines, expected = (
        [line.split() for line in text.strip().splitlines()] for text in (got, printed)
    )
    return [*map(len, lines)] == [*map(len, expected)] and all(
        all(map(_word_alike, *pair)) for pair in zip(lines, expected, strict=True)
    )


def _word_alike(word, printed):
    if re.fullmatch(r"\d+\.\d+", printed):
        # Of two decimals the last may be off by one.
        tolerance = max(SCORE_TOLERANCE, 1.1 * 10.0 ** -len(printed.partition(".")[2]))
        return float(word) == pytest.approx(float(printed), abs=tolerance)
    if set(printed) <= BARS:
        return set(word) <= BARS and abs(len(word) - len(printed)) <= 1
    return word == printed


def test_every_setting_is_named_in_the_readme():
    from service.settings import Settings

    for name in Settings.model_fields:
        assert f"`{name}`" in README, f"{name} is missing from the table of settings"


def test_every_path_that_the_readme_names_exists():
    for path in re.findall(r"\]\(([^)#]+)\)", README):
        if not path.startswith("http"):
            assert (ROOT / path).exists(), path


def test_every_test_that_the_known_faults_name_exists():
    text = (ROOT / "docs" / "known-faults.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    files = {path.name for path in (ROOT / "tests").rglob("*.py")}
    named = re.findall(r"\b(test_\w+)(\.py)?", text)
    assert named
    for name, is_file in named:
        assert f"{name}.py" in files if is_file else f"def {name}(" in sources, name

"""The image without an engine: its own commands, in an environment that is as bare as the image."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.deploy.files import ROOT, environment, lineage

pytestmark = pytest.mark.slow

# What the README waits for; a busy machine compiles for minutes.
PATIENCE_S = 1200.0
INTERPRETERS = (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3")
USER = int(lineage("serve").values("USER")[-1].split(":")[0])
IS_ROOT = os.geteuid() == 0
SLOW_REQUEST = {"prompt": "the time traveller ", "max_tokens": 1024, "temperature": 0, "n": 1}


def as_user():
    """Whom to be: the user of the image where we may choose, else whoever runs the tests."""
    return {"user": USER, "group": USER, "extra_groups": []} if IS_ROOT else {}


def reachable_interpreter():
    """A Python that the user of the image may start; a home directory's own is out of its reach."""
    for path in map(os.path.realpath, INTERPRETERS):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            check = "import sys, venv; assert sys.version_info >= (3, 11)"
            subprocess.run([path, "-c", check], check=True, capture_output=True, **as_user())
            return path
    return pytest.skip("no Python 3.11 or newer is where another user can start it")


@pytest.fixture(scope="module")
def place():
    """A directory that every user can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="triwire-image-", dir="/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.fixture(scope="module")
def python(place):
    """The interpreter of a new environment with what ``requirements-serve.lock`` lists, only."""
    environment_path = place / "venv"
    interpreter = reachable_interpreter()
    subprocess.run([interpreter, "-m", "venv", "--without-pip", environment_path], check=True)
    made = environment_path / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", made, "install", "--quiet"]
    lock = ROOT / "requirements-serve.lock"
    subprocess.run([*pip, "--require-hashes", "-r", lock], check=True)
    return made


@pytest.fixture(scope="module")
def checkout(place):
    """What the image copies, which nobody may write to."""
    root = place / "app"
    for copy in lineage("serve").values("COPY"):
        if copy.startswith("--from=sources"):
            target = copy.split()[-1]
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / target, root / target, ignore=ignored)
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield root
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)


class Container:
    """The entry point of the image, with its variables and no others, as its user."""

    def __init__(self, python, checkout, place):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        cache = place / "cache"
        cache.mkdir(mode=0o750)
        if IS_ROOT:
            os.chown(cache, USER, USER)
        stage = lineage("serve")
        self.python, self.checkout = python, checkout
        self.environment = environment(stage) | {
            "PATH": "/usr/bin:/bin",
            "XDG_CACHE_HOME": str(cache),
            "TRIWIRE_HOST": "127.0.0.1",
            "TRIWIRE_PORT": str(self.port),
            "TRIWIRE_SHUTDOWN_GRACE_S": "1",
            "TRIWIRE_DRAIN_TIMEOUT_S": str(PATIENCE_S),
            "TRIWIRE_REQUEST_TIMEOUT_S": str(PATIENCE_S),
        }
        self.log = place / "log"
        (entry_point,) = stage.values("ENTRYPOINT")
        with self.log.open("w") as log:
            self.child = self.start(json.loads(entry_point), stdout=log, stderr=log)

    def start(self, command, **streams):
        """Starts a command of the image; its Python is that of the environment made here."""
        assert command[0] == "/opt/venv/bin/python"
        return subprocess.Popen(
            [self.python, *command[1:]],
            cwd=self.checkout,
            env=self.environment,
            **streams,
            **as_user(),
        )

    def health(self):
        """What the health check of the image says: its status and its words."""
        (check,) = lineage("serve").values("HEALTHCHECK")
        process = self.start(json.loads(check[check.index("[") :]), stdout=subprocess.PIPE)
        said, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, said.decode()

    def ask(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def container(python, checkout, place):
    container = Container(python, checkout, place)
    deadline = time.monotonic() + PATIENCE_S
    while container.health()[0] != 0:
        assert container.child.poll() is None, container.log.read_text()
        assert time.monotonic() < deadline, container.log.read_text()
        time.sleep(2)
    yield container
    if container.child.poll() is None:
        container.child.kill()
        container.child.wait()


def test_it_serves_as_a_user_without_privileges_from_files_that_nobody_may_write(
    container, checkout
):
    status, answer = container.ask("/v1/decode", {"inputs": "abcdefghijkl"})
    assert status == 200, answer
    assert answer["results"][0]["output"] == "lkjihgfedcba"
    owner = Path(f"/proc/{container.child.pid}").stat().st_uid
    assert owner == (USER if IS_ROOT else os.geteuid()) != 0
    assert not [*checkout.rglob("__pycache__")]


def test_the_client_in_the_image_asks_the_service_beside_it(container):
    url = f"http://127.0.0.1:{container.port}"
    command = ["/opt/venv/bin/python", "-m", "triwire", "decode", "stressed", "--url", url]
    asking = container.start(command, stdout=subprocess.PIPE)
    said, _ = asking.communicate(timeout=PATIENCE_S)
    assert asking.returncode == 0
    assert b"desserts" in said


def test_what_is_compiled_is_kept_in_the_volume(container, place):
    assert [*(place / "cache" / "triwire" / "compiled").glob("jax-*/*")]


def test_sigterm_turns_health_off_and_lets_what_is_under_way_be_answered(container):
    answers = []
    client = threading.Thread(
        target=lambda: answers.append(container.ask("/v1/completions", SLOW_REQUEST))
    )
    client.start()
    time.sleep(0.2)
    container.child.send_signal(signal.SIGTERM)
    assert container.child.wait(timeout=PATIENCE_S) == 0, container.log.read_text()
    client.join(PATIENCE_S)
    ((status, answer),) = answers
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] > 0
    assert "not ready any more" in container.log.read_text()
    assert container.health()[0] == 1

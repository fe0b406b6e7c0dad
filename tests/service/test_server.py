"""A real process under load: new versions, bad bundles, and the way out."""

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint import save_model
from service.joined_writes import JoinedWrites
from service.server import Server
from tests.service import tiny
from tests.service.fakes import fake_app

ROOT = Path(__file__).parent.parent.parent
NUM_CLIENTS = 6
PATIENCE_S = 240.0
PREFIX = "/triwire"
SOURCES = ["abcdefghijkl", "ponmlkjihgfe", "aaaabbbbcccc"]


class Process:
    """A server of one tiny model, as an operator would start it."""

    def __init__(self, root):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.checkpoints = root / "checkpoints"
        self.log = root / "log"
        flags = [
            f"--port={self.port}",
            f"--checkpoints={self.checkpoints}",
            f"--root-path={PREFIX}",
            f"--compilation-cache={root / 'cache'}",
            "--models=reversal",
            "--device=cpu",
            "--shutdown-grace-s=3",
        ]
        command = [sys.executable, "-m", "service", *flags]
        with self.log.open("w") as log:
            self.child = subprocess.Popen(command, cwd=ROOT, env=os.environ, stderr=log)
        self.wait_until(lambda: self.get("/readyz")[0] == 200)

    def wait_until(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self.child.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            try:
                if condition():
                    return
            except OSError:
                pass
            time.sleep(0.05)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def model(self):
        return json.loads(self.get("/v1/models/reversal")[1])

    def save(self, version):
        card = replace(next(c for c in tiny.cards() if c.name == "reversal"), version=version)
        return save_model(self.checkpoints, card, tiny.model(card, seed=version))


@pytest.fixture(scope="module")
def process(tmp_path_factory, checkpoints):
    root = tmp_path_factory.mktemp("server")
    shutil.copytree(checkpoints / "reversal", root / "checkpoints" / "reversal")
    process = Process(root)
    yield process
    if process.child.poll() is None:
        process.child.kill()
        process.child.wait()


class Load:
    """Clients that ask without a pause, each on connections of its own, until told to stop.

    ``answers`` are (source, status, body) of all that was asked; ``lost`` what was not answered.
    """

    def __init__(self, port):
        self.port = port
        self.stopping = threading.Event()
        self.answers = []
        self.lost = []
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(NUM_CLIENTS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)

    def ask(self, index):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        count = index
        while not self.stopping.is_set():
            source = SOURCES[count % len(SOURCES)]
            count += 1
            try:
                headers = {"Content-Type": "application/json"}
                connection.request("POST", "/v1/decode", json.dumps({"inputs": source}), headers)
                answer = connection.getresponse()
                self.answers.append((source, answer.status, json.loads(answer.read())))
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
                connection.close()
        connection.close()


def test_behind_a_proxy_that_strips_its_prefix_the_documentation_finds_its_schema(process):
    status, page = process.get("/docs")
    assert status == 200
    assert f"{PREFIX}/openapi.json" in page
    status, schema = process.get("/openapi.json")
    assert status == 200
    assert json.loads(schema)["servers"] == [{"url": PREFIX}]
    status, body = process.get("/v2/nothing")
    assert (status, list(json.loads(body))) == (404, ["error"])


def test_under_load_a_new_version_takes_over_and_nothing_is_lost_or_mixed(process):
    with Load(process.port) as load:
        process.wait_until(lambda: len(load.answers) > 20)
        process.save(2)
        process.child.send_signal(signal.SIGHUP)
        process.wait_until(lambda: process.model()["version"] == 2)
        num_before = len(load.answers)
        process.wait_until(lambda: len(load.answers) > num_before + 20)
    assert load.lost == []
    assert {status for _, status, _ in load.answers} == {200}
    outputs = {}
    for source, _, body in load.answers:
        result = body["results"][0]["output"]
        outputs.setdefault((source, body["version"]), set()).add(result)
    # One answer for every source and version, so none came from parameters of the other.
    assert {version for _, version in outputs} == {1, 2}
    assert all(len(found) == 1 for found in outputs.values())


def test_under_load_a_bad_bundle_changes_nothing_and_is_told(process):
    served = process.model()["version"]
    with Load(process.port) as load:
        bundle = process.save(3)
        (bundle / "model.json").write_text("{}")
        process.child.send_signal(signal.SIGHUP)
        process.wait_until(lambda: process.model()["failure"] is not None)
        num_before = len(load.answers)
        process.wait_until(lambda: len(load.answers) > num_before + 20)
    assert load.lost == []
    assert {status for _, status, _ in load.answers} == {200}
    model = process.model()
    assert model["version"] == served
    assert model["failure"].startswith("reversal/3/model.json: expected the fields of a model")
    shutil.rmtree(bundle)


def test_nothing_was_compiled_for_requests_and_every_line_of_the_log_is_json(process):
    assert "\ntriwire_compilations_after_ready_total 0.0\n" in process.get("/metrics")[1]
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert any("loading reversal/1: 0 of" in line["message"] for line in lines)
    assert any(line.get("path") == "/v1/decode" and line["request_id"] for line in lines)


def test_sigterm_under_load_loses_nothing_and_ends_with_status_0(process):
    """Clients follow readiness, as a balancer has them do."""
    with Load(process.port) as load:
        process.wait_until(lambda: len(load.answers) > 20)
        process.child.send_signal(signal.SIGTERM)
        process.wait_until(lambda: process.get("/readyz")[0] == 503)
        assert process.get("/livez")[0] == 200
        num_before = len(load.answers)
        process.wait_until(lambda: len(load.answers) > num_before)
    assert process.child.wait(PATIENCE_S) == 0
    assert load.lost == []
    assert {status for _, status, _ in load.answers} == {200}


def test_connections_join_what_is_written_to_them():
    async def connect():
        server = Server(fake_app())
        server.config.load()
        protocol = server.config.http_protocol_class(
            config=server.config, server_state=server.server_state, app_state={}
        )
        protocol.connection_made(asyncio.Transport())
        return protocol.transport

    assert isinstance(asyncio.run(connect()), JoinedWrites)

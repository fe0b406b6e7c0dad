import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from service import probe
from service.settings import Settings

ROOT = Path(__file__).parent.parent.parent
KEY = "Bearer one-key"


class Answer(http.server.BaseHTTPRequestHandler):
    """Says what its server is told to say of /readyz, and notes who asked."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"told")

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    server.status, server.asked = 200, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def asks(service, **given):
    return probe.main({"TRIWIRE_PORT": str(service.server_port), **given})


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_service_that_is_ready_is_healthy(service, host, capsys):
    assert asks(service, TRIWIRE_HOST=host) == 0
    assert service.asked == [("/readyz", None)]
    assert capsys.readouterr().out == "200 told\n"


@pytest.mark.parametrize("status", [401, 500, 503])
def test_any_other_answer_is_not(service, status, capsys):
    service.status = status
    assert asks(service) == 1
    assert capsys.readouterr().out == f"{status} told\n"


def test_where_nobody_answers_it_says_so(service, capsys):
    port = service.server_port
    service.server_close()
    assert probe.main({"TRIWIRE_PORT": str(port)}) == 1
    assert f"port {port}" in capsys.readouterr().out


def test_a_key_is_shown_where_the_service_has_keys(service, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\none-key\nanother\n")
    assert asks(service, TRIWIRE_API_KEYS_FILE=str(file)) == 0
    assert asks(service, TRIWIRE_API_KEYS=" one-key,another") == 0
    assert service.asked == [("/readyz", KEY), ("/readyz", KEY)]


def test_keys_that_cannot_be_read_are_told_and_nothing_is_asked(service, tmp_path, capsys):
    assert asks(service, TRIWIRE_API_KEYS_FILE=str(tmp_path / "none")) == 1
    assert "none" in capsys.readouterr().out
    assert service.asked == []


def test_no_proxy_is_asked_whatever_the_environment_names(service, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert asks(service, http_proxy="http://127.0.0.1:1") == 0


def test_it_asks_where_a_service_listens_that_is_told_nothing():
    source = Path(probe.__file__).read_text()
    assert f'"TRIWIRE_HOST", "{Settings.model_fields["host"].default}"' in source
    assert f'"TRIWIRE_PORT", "{Settings.model_fields["port"].default}"' in source


def test_nothing_but_the_standard_library_is_imported():
    """It runs every few seconds, beside a service that has better use for the processor."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import service.probe, sys, json; print(json.dumps([*sys.modules]))",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    roots = {name.split(".")[0] for name in json.loads(told.stdout)}
    assert "service" in roots
    assert not roots & {"jax", "numpy", "pydantic", "fastapi", "uvicorn"}

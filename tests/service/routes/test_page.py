import re

import pytest
from starlette.testclient import TestClient

from service.routes.page import STATIC
from tests.service.fakes import fake_app

FILES = sorted(path.name for path in STATIC.iterdir())


def test_the_page_loads_nothing_but_its_own_files(client):
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="(static/[^"]+)"', answer.text)
    assert named
    assert {name.removeprefix("static/") for name in named} <= set(FILES)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)


@pytest.mark.parametrize("path", ["/", *(f"/static/{name}" for name in FILES)])
def test_every_file_of_the_page_is_served_under_its_policy(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["nothing", "", "..%2Fapp.py", "%2e%2e/app.py"])
def test_nothing_else_is_served_as_a_file_of_the_page(client, path):
    answer = client.get(f"/static/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "no_such_call"


def test_nothing_is_inline_as_the_policy_forbids_it():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|style=|<style|<script(?![^>]*\ssrc=)", page)


def test_what_a_script_imports_is_there():
    for path in STATIC.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8")):
            assert name in FILES, f"{path.name} imports {name}"


def test_addresses_begin_with_the_prefix_of_a_proxy():
    client = TestClient(fake_app(), root_path="/triwire")
    assert '<base href="/triwire/">' in client.get("/triwire/").text
    assert client.get("/triwire/static/app.js").status_code == 200


def test_without_a_proxy_they_begin_at_the_root(client):
    assert '<base href="/">' in client.get("/").text


def test_the_page_is_open_where_the_api_needs_a_key():
    client = TestClient(fake_app(api_keys="sesame"))
    assert client.get("/").status_code == 200
    assert client.get("/static/app.js").status_code == 200
    assert client.get("/v1/models").status_code == 401


def test_the_page_needs_a_key_where_the_documentation_does():
    client = TestClient(fake_app(api_keys="sesame", protected="docs"))
    assert client.get("/").status_code == 401
    assert client.get("/static/app.js").status_code == 401

"""Paths, methods and hosts that do not exist."""

import pytest

from tests.service.wrong import GOOD, SOURCE


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_another_method_is_not_allowed(client, path, method):
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    if method != "HEAD":
        assert answer.json()["error"]["message"] == f"{method} '{path}': Method Not Allowed"


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/fill_mask",
        "/V1/decode",
        *(f"{path}/" for path in GOOD),
        "/v1/models/",
        "/livez/",
        "/readyz/",
        "//v1/decode",
        "/v1/decode/../../etc/passwd",
        "/%00",
        "/%ff",
        "/" + "x" * 5000,
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_not_found(client, path, method):
    answer = client.request(method, path, json=GOOD["/v1/decode"] if method == "POST" else None)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "no_such_call"
    assert len(error["message"]) < 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_of_another_protocol_is_told_in_its_shape(client, method):
    for path in ("/v2/models", "/v2/models/masked-lm/", "/v2/models/masked-lm/stats"):
        answer = client.request(method, path, json={} if method == "POST" else None)
        assert answer.status_code == 404
        assert answer.json() == {"error": f"{method} {path!r}: Not Found"}


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "\u00e9", "", "x" * 5000])
def test_a_senseless_host_is_no_fault_of_ours(client, host):
    headers = {"Host": host.encode("latin-1")}
    assert client.get("/nothing", headers=headers).status_code == 404
    assert client.get("/v1/decode", headers=headers).status_code == 405
    assert client.post("/v1/decode", json=[], headers=headers).status_code == 422
    assert client.post("/v1/decode", json={"inputs": SOURCE}, headers=headers).status_code == 200

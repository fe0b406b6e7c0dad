import hmac

import pytest
from starlette.datastructures import Headers

from service.errors import Unauthorized
from service.keys import KeyFileError, Keys


def allows(keys, path, authorization=None):
    fields = {} if authorization is None else {"Authorization": authorization}
    try:
        keys.require(path, Headers(fields))
    except Unauthorized:
        return False
    return True


def test_without_keys_everything_is_open():
    keys = Keys()
    assert not keys.are_there
    assert allows(keys, "/v1/decode")


def test_any_of_several_keys_opens_the_api(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of the team\n  third \n\nfourth\n")
    keys = Keys(["first", "second"], file)
    assert keys.are_there
    for key in ("first", "second", "third", "fourth"):
        assert allows(keys, "/v1/decode", f"Bearer {key}")
        assert allows(keys, "/v1/decode", f"bearer  {key}")


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "first",
        "Basic first",
        "Bearer firs",
        "Bearer first1",
        "Bearer FIRST",
        "Bearer first second",
        "Bearer # of the team",
    ],
)
def test_nothing_else_does(authorization):
    keys = Keys(["first", "second"])
    assert not allows(keys, "/v1/decode", authorization)


def test_a_key_is_any_text_in_utf_8():
    keys = Keys(["schlüssel"])
    raw = [(b"authorization", "Bearer schlüssel".encode())]
    keys.require("/v1/decode", Headers(raw=raw))


def test_every_key_is_compared_and_only_by_its_digest(monkeypatch):
    compared = []

    def compare(one, other):
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys(["first", "second", "third"])
    assert allows(keys, "/v1/decode", "Bearer first")
    assert len(compared) == 3
    assert all(len(one) == len(other) == 32 for one, other in compared)


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/livez", "probes"),
        ("/readyz", "probes"),
        ("/health", "probes"),
        ("/v2/health/live", "probes"),
        ("/v2/health/ready", "probes"),
        ("/metrics", "metrics"),
        ("/docs", "docs"),
        ("/openapi.json", "docs"),
    ],
)
def test_probes_metrics_and_docs_need_a_key_only_where_it_is_set(path, group):
    assert allows(Keys(["key"]), path)
    guarded = Keys(["key"], protected=[group])
    assert not allows(guarded, path)
    assert allows(guarded, path, "Bearer key")


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/models/x", "/v2", "/v2/", "/v2/models/x", "/v2/models/x/ready", "/nothing"],
)
def test_all_else_needs_one(path):
    assert not allows(Keys(["key"]), path)


def test_the_file_is_read_again_when_it_is_told_to_and_kept_where_it_is_no_good(tmp_path):
    file = tmp_path / "keys"
    file.write_text("old")
    keys = Keys(file=file)
    file.write_text("new")
    assert allows(keys, "/v1/decode", "Bearer old")
    keys.read()
    assert allows(keys, "/v1/decode", "Bearer new")
    assert not allows(keys, "/v1/decode", "Bearer old")
    file.write_text("")
    with pytest.raises(KeyFileError, match="expected a key on each line"):
        keys.read()
    assert allows(keys, "/v1/decode", "Bearer new")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(KeyFileError, match="it is not in UTF-8"):
        Keys(file=file)

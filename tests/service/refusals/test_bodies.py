"""Bodies that no call takes: each gets its documented status and a message that helps.

After every one of them the service answers a right request as if nothing had been.
"""

import orjson
import pytest

from tests.service.wrong import GOOD, LONG, TEXT

MALFORMED = {
    "empty": b"",
    "blank": b" \n",
    "word": b"hello",
    "single quotes": b"{'inputs': 'a'}",
    "unquoted name": b"{inputs: 'a'}",
    "cut short": b'{"inputs": "a',
    "trailing comma": b'{"inputs": "a",}',
    "two documents": b'{"inputs": "a"}{}',
    "form": b"inputs=a",
    "comment": b'{"inputs": "a"} // x',
    "NaN": b'{"inputs": "a", "top_k": NaN}',
    "Infinity": b'{"inputs": "a", "top_k": Infinity}',
    "-Infinity": b'{"features": [[-Infinity]]}',
    "1e999": b'{"inputs": "a", "temperature": 1e999}',
    "-1e999": b'{"features": [[-1e999]]}',
    "hexadecimal": b'{"inputs": "a", "top_k": 0x10}',
    "leading zero": b'{"inputs": "a", "top_k": 01}',
    "plus": b'{"inputs": "a", "top_k": +1}',
    "10,000 brackets": b'{"inputs": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "10,000 open brackets": b"[" * 10_000,
    "10,000 objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "escaped high surrogate": b'{"inputs": "a\\ud800"}',
    "escaped low surrogate": b'{"inputs": "\\udfffa"}',
    "surrogates the wrong way round": b'{"inputs": "\\udc00\\ud800"}',
    "raw surrogate": b'{"inputs": "\xed\xa0\x80"}',
    "surrogate in a name": b'{"\\ud800": "a"}',
    "broken utf-8": b'{"inputs": "\xff"}',
    "cut utf-8": b'{"inputs": "\xc3"}',
    "overlong utf-8": b'{"inputs": "\xc0\xaf"}',
    "latin-1": '{"inputs": "é"}'.encode("latin-1"),
    "utf-16": '{"inputs": "a"}'.encode("utf-16"),
    "raw NUL": b'{"inputs": "\x00"}',
    "raw newline": b'{"inputs": "a\nb"}',
    "NUL after the end": b'{"inputs": "a"}\x00',
    "byte order mark": b'\xef\xbb\xbf{"inputs": "a"}',
    "gzip": bytes.fromhex("1f8b0800000000000003ab5652cacc2b282d2956b252505250ac05"),
    "100 kB of nonsense": b"x" * 100_000,
}


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_json_is_malformed(refuse, path, body):
    error = refuse(path, body, 400)
    assert error["param"] is None
    assert error["message"].startswith("expected a body of JSON in UTF-8: ")


KINDS = [None, "", "text/plain", "application/x-www-form-urlencoded", "application", "*"]
TAKES = dict.fromkeys(GOOD, "application/json")
TAKES["/v1/latents"] += " or application/x-npy"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (path, kind)
        for path in GOOD
        for kind in [*KINDS, "application/x-npy"]
        if not kind or kind not in TAKES[path]
    ],
)
def test_a_body_of_another_type_is_refused(refuse, path, kind):
    error = refuse(path, orjson.dumps(GOOD[path]), 415, content_type=kind)
    assert error["param"] == "Content-Type"
    assert f"expected {TAKES[path]}, got " in error["message"]


@pytest.mark.parametrize("path", GOOD)
def test_a_body_over_the_limit_is_too_large(refuse, path):
    body = orjson.dumps(GOOD[path])
    error = refuse(path, body + b" " * 2**20, 413)
    assert error["message"].startswith("expected a body of at most 1048576 bytes, got ")


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"[]", "[]"),
        (b'[{"inputs": "a"}]', "[{...}]"),
        (b'"a"', "'a'"),
        (b"5", "5"),
        (b"1.5", "1.5"),
        (b"true", "true"),
        (b"null", "null"),
        (orjson.dumps(LONG), "(100000 characters)"),
        (b"[" * 1000 + b"]" * 1000, "[[...]]"),
    ],
    ids=str,
)
def test_a_body_that_is_no_object_is_told_what_came(refuse, path, body, got):
    error = refuse(path, body, 422)
    assert error["param"] is None
    assert error["message"].startswith("expected an object, got ")
    assert error["message"].endswith(got)


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("name", ["text", "Inputs", "", "__class__", "inputs ", LONG, "é\n\x00"])
def test_an_unknown_field_is_named_with_those_there_are(refuse, path, name):
    error = refuse(path, GOOD[path] | {name: 1}, 422)
    assert error["param"] == name[:40] or (not name and error["param"] is None)
    assert f"expected one of the fields model, {TEXT[path]}, " in error["message"]


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("value", [10**30, -(10**30), 10**4000], ids=["1e30", "-1e30", "1e4000"])
def test_integers_that_no_machine_holds_are_refused(refuse, path, value):
    field = {
        "fill-mask": "top_k",
        "decode": "max_new_tokens",
        "embeddings": "dimensions",
        "completions": "seed",
    }
    field = field.get(path[4:], "features")
    body = orjson.dumps(GOOD[path])[:-1] + b', "%s": ' % field.encode()
    content = body.replace(b'"inputs"', b'"model"') if field == "features" else body
    status = 400 if value == 10**4000 else 422
    refuse(path, content + str(value).encode() + b"}", status)


@pytest.mark.parametrize("path", GOOD)
def test_of_a_field_given_twice_the_last_one_counts_as_json_readers_have_it(client, path):
    model = GOOD[path].get("model")
    body = (
        b'{"model": "nothing", '
        + orjson.dumps(GOOD[path])[1:-1]
        + b', "model": %s}' % orjson.dumps(model)
    )
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200

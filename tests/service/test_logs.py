import asyncio
import io
import json
import logging
import os
import re

import pytest

from service import logs
from tests.service.fakes import fake_app, serving

# What the logging of Python looks up for every record, unless these say no.
LOOKED_UP = ("logThreads", "logProcesses", "logMultiprocessing")


@pytest.fixture
def log():
    """What ``set_up`` writes, with the root logger put back afterwards."""
    root, libraries = logging.getLogger(), [logging.getLogger(n) for n in ("absl", "jax")]
    looked_up = [getattr(logging, name) for name in LOOKED_UP]
    before = root.level, root.handlers[:], [library.level for library in libraries]
    # As far as basicConfig is concerned, the handlers of pytest are not there.
    root.handlers = []
    stream = io.StringIO()
    yield stream
    root.handlers = before[1]
    root.setLevel(before[0])
    for library, level in zip(libraries, before[2], strict=True):
        library.setLevel(level)
    for name, value in zip(LOOKED_UP, looked_up, strict=True):
        setattr(logging, name, value)


def test_json_is_an_object_on_every_line_with_the_request_it_belongs_to(log):
    logs.set_up("json", "info", log)
    logger = logging.getLogger("service.somewhere")
    logger.info("outside %d", 1)
    with logs.within_request("my-id"):
        logger.warning("inside\n%s", "é", extra={"fields": {"status": 200}})
        try:
            raise ValueError("why")
        except ValueError:
            logger.exception("failed")
    logger.debug("too little")
    outside, inside, failed = map(json.loads, log.getvalue().splitlines())
    assert outside["message"] == "outside 1"
    assert outside["level"] == "INFO"
    assert outside["logger"] == "service.somewhere"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", outside["time"])
    assert "request_id" not in outside
    assert inside["message"] == "inside\né"
    assert inside["request_id"] == "my-id"
    assert inside["status"] == 200
    assert "ValueError: why" in failed["exception"]
    assert failed["request_id"] == "my-id"


def test_text_is_a_line_to_read_that_ends_with_the_request(log):
    logs.set_up("text", "warning", log)
    logging.getLogger("service").info("too little")
    with logs.within_request("my-id"):
        logging.getLogger("service").warning("inside")
    logging.getLogger("service").warning("outside")
    inside, outside = log.getvalue().splitlines()
    assert re.fullmatch(r"[0-9-]+ [0-9:,]+ WARNING inside \[my-id\]", inside)
    assert outside.endswith("WARNING outside")


def test_by_default_it_is_text_on_a_terminal_and_json_elsewhere(log):
    primary, secondary = os.openpty()
    with os.fdopen(secondary, "w") as terminal, os.fdopen(primary) as screen:
        logs.set_up("auto", "info", terminal)
        logging.getLogger("service").info("seen")
        assert screen.readline().rstrip().endswith("INFO seen")
        logging.getLogger().handlers = []
    logs.set_up("auto", "info", log)
    logging.getLogger("service").info("kept")
    assert json.loads(log.getvalue())["message"] == "kept"


def test_every_request_is_logged_with_its_path_task_and_timing_and_nothing_of_its_content(log):
    with serving(fake_app()) as client:
        logs.set_up("json", "info", log)
        headers = {"X-Request-Id": "my-id", "Authorization": "Bearer secret-key"}
        client.post("/v1/decode", json={"inputs": "abcdefghijkl"}, headers=headers)
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (line,) = [line for line in lines if line["logger"] == "service.logs"]
    assert line["request_id"] == "my-id"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/decode", 200)
    assert line["task"] == "decode"
    assert line["total_ms"] >= line["compute_ms"] > 0
    assert "abcdefghijkl" not in log.getvalue()
    assert "secret-key" not in log.getvalue()


def messages(log):
    return [json.loads(line)["message"] for line in log.getvalue().splitlines()]


def test_lines_of_one_pass_of_the_loop_are_written_together_and_warnings_at_once(log):
    logs.set_up("json", "info", log)
    logger = logging.getLogger("service")

    async def run():
        logger.info("first")
        logger.info("second")
        assert messages(log) == []
        logger.warning("third")
        assert messages(log) == ["first", "second", "third"]
        logger.info("fourth")
        await asyncio.sleep(0)
        assert messages(log)[3:] == ["fourth"]

    asyncio.run(run())


def test_what_a_loop_has_not_written_when_it_ends_is_not_lost(log):
    logs.set_up("json", "info", log)
    logger = logging.getLogger("service")
    abandoned, later = asyncio.new_event_loop(), asyncio.new_event_loop()
    abandoned.call_soon(logger.info, "first")
    abandoned.call_soon(abandoned.stop)
    abandoned.run_forever()
    abandoned.close()
    later.call_soon(logger.info, "second")
    later.call_soon(lambda: later.call_soon(later.call_soon, later.stop))
    later.run_forever()
    later.close()
    assert messages(log) == ["first", "second"]


def test_a_line_that_cannot_be_written_ends_nothing(log, capsys):
    logs.set_up("json", "info", log)
    logging.getLogger("service").info("%d", "no number")
    logging.getLogger("service").info("next")
    assert messages(log) == ["next"]
    assert "no number" in capsys.readouterr().err

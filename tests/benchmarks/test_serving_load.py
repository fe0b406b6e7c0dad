import contextlib
import dataclasses
import json
import socketserver
import threading

import pytest

from benchmarks import serve
from benchmarks.peers.processes import Process
from benchmarks.serving.load import Plan, measure, quantile
from benchmarks.serving.wire import LENGTH

RIGHT = json.dumps({"candidates": "right"})


class Handler(socketserver.StreamRequestHandler):
    """Answers what the server has been told to; an answer of None closes the connection."""

    def handle(self):
        while head := self._head():
            length = LENGTH.search(head)
            assert length is not None
            self.rfile.read(int(length[1]))
            with self.server.lock:
                self.server.num_requests += 1
                answer = self.server.answer(self.server.num_requests)
            if answer is None:
                return
            self.wfile.write(answer)

    def _head(self):
        lines = []
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextlib.contextmanager
def answering(answer):
    with Server(("127.0.0.1", 0), Handler) as server:
        server.answer, server.num_requests, server.lock = answer, 0, threading.Lock()
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server
        finally:
            server.shutdown()


def written(status, body):
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def plan(server, **changes):
    given = {
        "port": server.server_address[1],
        "path": "/predict",
        "bodies": ["{}"],
        "wanted": [{}],
        "found": [],
        "tolerance": 0.0,
        "connections": 3,
        "seconds": 30.0,
        "warm_s": 0.0,
        "exact": RIGHT,
        "max_requests": 40,
    }
    return Plan(**{**given, **changes})


def test_all_that_is_asked_is_answered_and_found_right():
    with answering(lambda _: written(200, RIGHT)) as server:
        told = measure(plan(server))
    # Connections that were waiting when the last was sent send no more.
    assert 40 <= told["num_answers"] == server.num_requests < 43
    assert told["num_errors"] == 0
    assert 0 < told["p50_ms"] <= told["p99_ms"]


def test_answers_that_are_wrong_or_refused_are_counted_by_what_they_are():
    def answer(index):
        return written(503, "busy") if index % 4 == 0 else written(200, "x" * (index % 2))

    with answering(answer) as server:
        told = measure(plan(server, max_requests=40, connections=1))
    assert told["errors"] == {"another body": 30, "status 503": 10}
    assert told["num_errors"] == told["num_answers"] == 40


def test_a_connection_that_is_closed_counts_as_an_error_and_another_takes_its_place():
    with answering(lambda i: None if i == 5 else written(200, RIGHT)) as server:
        told = measure(plan(server, connections=2))
    assert told["errors"] == {"ConnectionResetError": 1}
    assert told["num_answers"] == server.num_requests - 1


def test_a_server_that_never_answers_is_given_up():
    with answering(lambda _: None) as server:
        told = measure(plan(server, connections=1, max_requests=10**6))
    assert told["num_answers"] == 0
    assert told["num_errors"] == 100
    assert told["p50_ms"] is None


def test_the_load_is_over_when_its_time_is():
    with answering(lambda _: written(200, RIGHT)) as server:
        told = measure(plan(server, seconds=0.05, warm_s=0.01, max_requests=10**6))
    assert told["num_errors"] == 0
    assert told["per_s"] * 0.05 <= told["num_answers"]


def test_only_one_connection_can_pause():
    with pytest.raises(ValueError, match="expected 1 connection with it, got 3"):
        Plan(**{**plan_fields(), "pause_s": 0.1})


def plan_fields():
    return {
        "port": 1,
        "path": "/",
        "bodies": [],
        "wanted": [],
        "found": [],
        "tolerance": 0.0,
        "connections": 3,
        "seconds": 1.0,
        "warm_s": 0.0,
    }


def test_a_quantile_is_one_of_the_values():
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert quantile([7.0], 0.99) == 7
    assert quantile([], 0.5) is None


def test_another_process_carries_plans_out():
    process = Process(serve.LOAD)
    try:
        process.call("set_up")
        with answering(lambda _: written(200, RIGHT)) as server:
            told = process.call("measure", **dataclasses.asdict(plan(server)))
    finally:
        process.close()
    assert told["num_answers"] >= 40
    assert told["errors"] == {}

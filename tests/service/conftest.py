"""One application over tiny models, started once and used by every test of an endpoint.

``models`` and ``service`` are imported inside fixtures; tests/conftest.py says why.
"""

import functools
import operator
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import orjson
import pytest

from tests.service.wrong import CODES, GOOD

# Long, as a machine that others use as well may take its time.
START_S = 900.0


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """A directory with a tiny bundle of every wiring; not to be written to."""
    from tests.service import tiny

    root = tmp_path_factory.mktemp("checkpoints")
    tiny.save(root)
    return root


@pytest.fixture(scope="session")
def service_settings(checkpoints):
    from service.settings import Settings

    return Settings(checkpoints=checkpoints, max_body_bytes=2**20)


@pytest.fixture(scope="session")
def client(service_settings, shared_executables):
    """A client of the running application, once it is ready."""
    from starlette.testclient import TestClient

    from service.app import create_app

    with TestClient(create_app(service_settings, kept=shared_executables)) as client:
        deadline = time.monotonic() + START_S
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert client.get("/readyz").json()["failures"] == {}
        yield client


@pytest.fixture(scope="session")
def live_service(service_settings, shared_executables):
    """Such an application behind a real socket, for clients that are not ours."""
    from service.app import create_app
    from tests.service import fakes

    app = create_app(service_settings, kept=shared_executables)
    with fakes.listening(app) as client:
        yield fakes.Listening(app, client)


@pytest.fixture(scope="session")
def live(live_service):
    """A client of it, whose ``base_url`` is the address."""
    return live_service.client


@pytest.fixture
def gate():
    """What holds the rows of a reversal model until it is opened, at the latest in the end."""
    from tests.service.fakes import Gate, reverse

    gate = Gate(lambda key, rows: reverse(rows))
    yield gate
    gate.opened.set()


@pytest.fixture
def threads():
    """For requests that wait while the test goes on."""
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture(scope="session")
def ask(client):
    """The answer to a request that must succeed."""

    def ask(path, **body):
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


@pytest.fixture(scope="session")
def call(checkpoints):
    """What is asked of one of the models that are served, called without the service.

    That is a method by its name, as "encoder.read" of a part, or a function of the model.
    """
    from flax import nnx

    from models.checkpoint import load_model
    from models.directories import find_bundles

    states = {
        name: nnx.split(load_model(path).model) for name, path in find_bundles(checkpoints).items()
    }

    @functools.cache
    def compiled(name, method):
        graph, _ = states[name]

        def run(state, *arrays):
            model = nnx.merge(graph, state)
            if callable(method):
                return method(model, *arrays)
            return operator.attrgetter(method)(model)(*arrays)

        return jax.jit(run)

    def call(name, method, *arrays):
        return jax.device_get(compiled(name, method)(states[name][1], *arrays))

    return call


@pytest.fixture(scope="session")
def pairs(tmp_path_factory, shared_executables):
    """A service, behind a real socket, that serves the model of pairs and no other."""
    from models.checkpoint import save_model
    from service.app import create_app
    from service.settings import Settings
    from tests.service import fakes, tiny

    root = tmp_path_factory.mktemp("pairs")
    model = tiny.model(tiny.pairs(), tiny.PAIRS_SEED)
    save_model(root, tiny.pairs(), model)
    # One call at a time, so that tests can have rows wait behind it.
    settings = Settings(checkpoints=root, calls_at_once=1)
    app = create_app(settings, kept=shared_executables)
    with fakes.listening(app) as client:
        yield fakes.Service(app, client, model)


@pytest.fixture(scope="session")
def good_answers(client):
    """Whether a right request to a path is answered as it was the first time."""

    def comparable(answer):
        return {key: value for key, value in answer.items() if key not in ("id", "created")}

    def answers(path):
        answer = client.post(path, json=GOOD[path])
        assert answer.status_code == 200
        return comparable(answer.json())

    first = {path: answers(path) for path in GOOD}
    return lambda path: answers(path) == first[path]


@pytest.fixture(scope="session")
def refuse(client, good_answers):
    """The error that a body is answered with, once it is found to be a proper one."""

    def refuse(path, body, status, content_type="application/json"):
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": content_type} if content_type else {}
        answer = client.post(path, content=content, headers=headers)
        assert answer.status_code == status, answer.text[:500]
        assert answer.headers["content-type"] == "application/json"
        assert list(answer.json()) == ["error"]
        error = answer.json()["error"]
        assert list(error) == ["message", "type", "param", "code", "request_id"]
        assert (error["type"], error["code"]) == CODES[status]
        assert error["request_id"] == answer.headers["x-request-id"]
        assert 0 < len(error["message"]) < 500
        assert "server-timing" in answer.headers
        if error["param"]:
            assert error["message"].startswith(error["param"] + ": ")
            assert len(error["param"]) < 100
        assert good_answers(path.partition("?")[0])
        return error

    return refuse

"""What is loaded, and whether it can be used."""

from urllib.parse import quote

import httpx2

from triwire.answers import Model, Readiness
from triwire.calls.request import Call
from triwire.reading import read


def models() -> Call[list[Model]]:
    """Every loaded model.

    Raises:
        TriwireError: if there is no answer.
    """
    return Call(
        path="/v1/models",
        method="GET",
        read=lambda response: [read(Model, item) for item in response.json()["data"]],
    )


def model(name: str) -> Call[Model]:
    """One loaded model.

    Raises:
        TriwireError: if none of that name is loaded.
    """
    path = f"/v1/models/{quote(name, safe='')}"
    return Call(path=path, method="GET", read=lambda response: read(Model, response.json()))


def plot(name: str, plot: str) -> Call[bytes]:
    """A picture of a model, as PNG; ``plots`` of the model names them.

    Raises:
        TriwireError: if there is none of that name.
    """
    path = f"/v1/models/{quote(name, safe='')}/plots/{quote(plot, safe='')}"
    return Call(path=path, method="GET", read=lambda response: response.content)


def reload(name: str) -> Call[None]:
    """Has a model loaded anew in the background.

    Raises:
        TriwireError: if none of that name is known, or the service has no API keys.
    """
    path = f"/v1/models/{quote(name, safe='')}/reload"
    return Call(path=path, read=lambda response: None)


def live() -> Call[bool]:
    """True where the process of the service answers.

    Raises:
        TriwireError: if it does not.
    """
    return Call(
        path="/livez",
        method="GET",
        is_probe=True,
        read=lambda response: response.status_code == 200,
    )


def ready() -> Call[Readiness]:
    """Whether models are loaded, compiled and tried out, and why not; a 503 is no error here.

    Raises:
        TriwireError: if there is no answer.
    """

    def readiness(response: httpx2.Response) -> Readiness:
        content = response.json()
        if response.status_code == 503:
            return Readiness(is_ready=False, reason=content["error"]["message"])
        return read(Readiness, content | {"is_ready": True})

    return Call(path="/readyz", method="GET", is_probe=True, read=readiness)

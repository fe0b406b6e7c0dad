"""Both clients by one name, and no pauses that are slept through."""

import asyncio

import pytest

from triwire import AsyncTriwire, Triwire


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("TRIWIRE_URL", "TRIWIRE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts, which take no time; more may be done in them."""

    class Pauses(list):
        def __init__(self):
            super().__init__()
            self.also = lambda: None

        def append(self, pause_s):
            super().append(pause_s)
            self.also()

    made = Pauses()

    async def sleep(pause_s):
        made.append(pause_s)

    # By their names in the clients: services that other tests share sleep in their own threads.
    monkeypatch.setattr("triwire.client.sleep", made.append)
    monkeypatch.setattr("triwire.async_client.sleep", sleep)
    return made


def ask_at_once(url, method, *arguments, how=None, **options):
    with Triwire(url, **(how or {})) as client:
        made = getattr(client, method)(*arguments, **options)
        return made.result() if "stream" in method else made


def ask_later(url, method, *arguments, how=None, **options):
    async def ask():
        async with AsyncTriwire(url, **(how or {})) as client:
            made = getattr(client, method)(*arguments, **options)
            return await (made.result() if "stream" in method else made)

    return asyncio.run(ask())


@pytest.fixture(params=[ask_at_once, ask_later], ids=["blocking", "asynchronous"])
def ask(request):
    """A call by one of the clients, made with ``how``; of a stream its result."""
    return request.param

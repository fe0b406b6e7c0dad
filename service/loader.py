"""Loads models in the background, one after the other, and rehearses requests before they come."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from service.registry import Registry

logger = logging.getLogger(__name__)


class Loader:
    """Loads from ``root`` into a registry, then calls ``rehearse``.

    Only one load runs at a time; what is asked for meanwhile comes after it.
    """

    def __init__(
        self, registry: Registry, root: Path, rehearse: Callable[[], Awaitable[None]]
    ) -> None:
        self._registry = registry
        self._root = root
        self._wanted: list[str | None] = []
        self._task: asyncio.Task[None] | None = None
        self.rehearse = rehearse

    def start(self, name: str | None = None) -> None:
        """Loads the model of that name, or all, as soon as nothing else is being loaded."""
        if name not in self._wanted:
            self._wanted.append(name)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="loader")

    async def stop(self) -> None:
        """Ends loading; what is being compiled is not waited for."""
        self._registry.stop()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while self._wanted:
            name = self._wanted.pop(0)
            try:
                await asyncio.to_thread(self._registry.load, self._root, name)
            except (OSError, ValueError) as error:
                logger.error("%s cannot be read: %s", self._root, error)
            logger.info("loaded: %s", ", ".join(sorted(self._registry.models)) or "nothing")
            await self.rehearse()

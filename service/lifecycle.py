"""Whether the service takes work, and if not, why: from the first load to the end."""

import asyncio
import enum

from service.batcher import Batcher
from service.errors import NotReady, Overloaded, TriwireError
from service.registry import Registry


class Phase(enum.Enum):
    """Where the service is on its way out."""

    SERVING = enum.auto()
    # Probes say no, so that no more is sent here; what comes is served.
    LEAVING = enum.auto()
    # What has begun is finished, and nothing else begins.
    DRAINING = enum.auto()


class Lifecycle:
    """What the probes, the gate and the way out share.

    ``is_warm`` says that the first requests have been rehearsed. A batch that runs for more than
    ``stuck_after_s`` has lost all who waited for it, so the device is taken for stuck.
    """

    def __init__(
        self, registry: Registry, batcher: Batcher, *, max_requests: int, stuck_after_s: float
    ) -> None:
        self._registry = registry
        self._batcher = batcher
        self._max_requests = max_requests
        self._stuck_after_s = stuck_after_s
        self._num_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_warm = False
        self.phase = Phase.SERVING

    def require_ready(self) -> None:
        """Checks that a request that comes now is served, and no slower than the thousandth.

        Raises:
            NotReady: if it is not; the message says why.
        """
        if self.phase is not Phase.SERVING:
            raise NotReady("the service is shutting down")
        self._registry.require_ready()
        if not self._batcher.is_alive:
            raise NotReady("expected a running worker, got none")
        if self._batcher.busy_s > self._stuck_after_s:
            raise NotReady(f"one batch has been running for {self._batcher.busy_s:.0f} s")
        if not self.is_warm:
            raise NotReady("models are loaded, and the first requests are being rehearsed")

    @property
    def is_ready(self) -> bool:
        """Whether ``require_ready`` has no objection."""
        try:
            self.require_ready()
        except TriwireError:
            return False
        return True

    @property
    def num_requests(self) -> int:
        """How many requests are being worked on."""
        return self._num_requests

    def enter(self) -> None:
        """Lets a request begin; it must ``exit``.

        Raises:
            NotReady: if nothing may begin any more.
            Overloaded: if too many are under way.
        """
        if self.phase is Phase.DRAINING:
            raise NotReady("the service is shutting down")
        if self._num_requests >= self._max_requests:
            raise Overloaded(f"{self._num_requests} requests are under way, and no more are taken")
        self._num_requests += 1
        self._idle.clear()

    def exit(self) -> None:
        """Notes that a request has been answered."""
        self._num_requests -= 1
        if not self._num_requests:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Waits until no request is being worked on."""
        await self._idle.wait()

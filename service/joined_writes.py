"""The head of an answer and its body leave as one packet.

uvicorn writes them by themselves, and each is sent at once: two calls of the system and two
packets, and a client that wakes up twice.
"""

import asyncio
from typing import Any

# A body of more than that is not copied behind its head.
MAX_JOINED_BYTES = 2**16


class JoinedWrites:
    """A transport that sends a write with the next one, or else after a pass of the event loop.

    The first of two is held back, and the second is not: what comes behind it, such as the log, has
    no part in how long a client waits. Everything else is that of ``transport``: ``writelines``,
    which would overtake what is held back, is not called by any protocol here.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: bytes | None = None

    def write(self, data: bytes) -> None:
        """Has ``data`` sent behind what was written before."""
        if self._held is None:
            self._held = data
            self._loop.call_soon(self._send)
        elif len(data) <= MAX_JOINED_BYTES:
            self._send(data)
        else:
            self._send()
            self._transport.write(data)

    def close(self) -> None:
        """Closes the connection once all is sent."""
        self._send()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send(self, more: bytes = b"") -> None:
        held, self._held = self._held, None
        # A client may have left meanwhile.
        if held is not None and not self._transport.is_closing():
            # Not ``writelines``: in some releases of Python it knows no limit, and never ends with
            # an empty part.
            self._transport.write(held + more)


def joining_writes(protocol: type[Any]) -> type[Any]:
    """A protocol for connections like ``protocol``, whose answers leave as one packet."""

    class Joining(protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(JoinedWrites(transport))

    return Joining

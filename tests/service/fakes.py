"""Stand-ins for the slow parts of the service."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

PATIENCE_S = 60.0


class Recorder:
    """A ``run`` for the batcher that echoes key and row, and remembers every batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[Any]]] = []

    def __call__(self, key: Any, rows: Sequence[Any]) -> list[Any]:
        self.batches.append((key, list(rows)))
        return [(key, row) for row in rows]

    @property
    def rows(self) -> list[Any]:
        return [row for _, rows in self.batches for row in rows]


class Gate(Recorder):
    """A recorder whose batches stay inside, in their worker thread, until the gate is opened."""

    def __init__(self, run: Callable[[Any, Sequence[Any]], Any] | None = None) -> None:
        super().__init__()
        self.run = run or super().__call__
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, key: Any, rows: Sequence[Any]) -> Any:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return self.run(key, rows)

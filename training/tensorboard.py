"""The metrics of a run for TensorBoard, where the extra that writes them is installed."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DIRECTORY = "tensorboard"
WRITER = "tensorboardX"

Write = Callable[[dict[str, Any]], None]


@contextmanager
def scalars(directory: Path, num_done: int, *, enabled: bool) -> Iterator[Write]:
    """What writes a record of the metrics as scalars of its step, under ``directory``/tensorboard.

    Steps past the first ``num_done`` that an earlier part of the run wrote are dropped by the
    viewer, as they are from the metrics. Without the extra, or unless ``enabled``, nothing is
    written.
    """
    if not enabled or importlib.util.find_spec(WRITER) is None:
        yield lambda record: None
        return
    writer = importlib.import_module(WRITER).SummaryWriter(
        str(directory / DIRECTORY), purge_step=num_done + 1
    )

    def write(record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name != "step":
                writer.add_scalar(name, value, record["step"])

    try:
        yield write
    finally:
        writer.close()

"""Compiled programs: kept on disk between two starts, and counted while they are made.

Loading what the cache holds is as trusted as loading code, so it belongs to one user; and code that
was compiled for the features of one CPU does not run on another, so it belongs to one machine.
"""

import contextlib
import contextvars
import hashlib
import logging
import os
import platform
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import jax

logger = logging.getLogger(__name__)

AUTO = "auto"
OFF = "off"
COMPILED = "/jax/core/compile/backend_compile_duration"
# Ours, beside those of JAX: an executable was on disk, so that nothing had to be compiled.
LOADED = "/triwire/executables/loaded"
CPU_INFO = Path("/proc/cpuinfo")

_is_expected = contextvars.ContextVar("is_expected", default=False)


@contextlib.contextmanager
def expected() -> Iterator[None]:
    """Compilations inside are part of loading a model, not something that a request caused."""
    token = _is_expected.set(True)
    try:
        yield
    finally:
        _is_expected.reset(token)


class CompilationCounter:
    """Counts what XLA compiles in this process while it listens, by the events of JAX itself.

    ``total`` counts all, ``loaded`` what was on disk and took no compiling, ``after_ready`` those
    that came while ``is_ready`` and belonged to no loading; ``spent_s`` is the time that all took.
    """

    def __init__(self) -> None:
        self.total = 0
        self.loaded = 0
        self.after_ready = 0
        self.spent_s = 0.0
        self.is_ready = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Counts from here to the end of the block."""
        jax.monitoring.register_event_duration_secs_listener(self._note_duration)
        jax.monitoring.register_event_listener(self._note_event)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(self._note_duration)
            jax.monitoring.unregister_event_listener(self._note_event)

    def _note_duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event != COMPILED:
            return
        is_unexpected = self.is_ready and not _is_expected.get()
        with self._lock:
            self.total += 1
            self.spent_s += duration_secs
            self.after_ready += is_unexpected
        if is_unexpected:
            logger.error(
                "compiled for %.2f s while serving; every shape should be there", duration_secs
            )

    def _note_event(self, event: str, **_: str | int) -> None:
        if event == LOADED:
            with self._lock:
                self.loaded += 1


def cache_directory(where: str) -> Path | None:
    """Where what is compiled is kept for the next start; None where nothing is.

    ``where`` is a directory, "off", or "auto" for the user's own cache. A place that cannot be used
    costs a slower start and nothing else, so it is logged and not raised.
    """
    if where == OFF:
        return None
    try:
        directory = _base(where) / "compiled" / _machine()
        _claim(directory)
    except (OSError, RuntimeError) as error:
        logger.warning("nothing that is compiled is kept for the next start: %s", error)
        return None
    return directory


def leave_out_cache_of_jax() -> None:
    """Has JAX keep nothing by itself, whatever its variables say.

    What comes out of its cache cannot be given out again, which shows only when a copy is run.
    """
    if getattr(jax.config, "jax_compilation_cache_dir", None):
        logger.info("JAX's own cache of what is compiled is left out")
    jax.config.update("jax_enable_compilation_cache", False)  # noqa: FBT003


def _base(where: str) -> Path:
    if where != AUTO:
        return Path(where).expanduser()
    given = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path there is to be ignored, says the specification that the variable comes from.
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "triwire"


def _machine() -> str:
    """A name for what compiled code depends on: the version of JAX, the device, the CPU."""
    device = jax.devices()[0]
    kind = re.sub("[^a-z0-9]+", "-", device.device_kind.lower()).strip("-")
    features = hashlib.sha256(_cpu_features().encode()).hexdigest()[:12]
    return f"jax-{jax.__version__}-{device.platform}-{kind}-{features}"


def _cpu_features() -> str:
    """What tells CPUs with different instructions apart."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "Features", "CPU part")
    found = sorted({line for line in lines if line.split("\t")[0].split(":")[0].strip() in wanted})
    return "\n".join([platform.machine(), platform.processor(), *found])


def _claim(directory: Path) -> None:
    """Makes the directory, and checks that it can be written to by us and by nobody we distrust."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & stat.S_IWOTH:
        raise PermissionError(f"{directory}: expected a directory that only its owner writes to")
    probe = directory / f".probe-{os.getpid()}"
    probe.touch()
    probe.unlink()

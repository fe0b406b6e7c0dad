"""Which models are loaded, and in which versions; from a directory of NAME/VERSION bundles.

Loading happens in a thread, while what is loaded goes on serving. A new version is read, checked,
compiled and run before it takes the place of the old one, in one assignment. Meanwhile the next one
is read, as reading needs the interpreter and loading XLA. Whoever has found a model keeps it to the
end of the request; the last to let go of an old version frees it.
"""

import contextvars
import functools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.checkpoint import ModelCard
from models.directories import find_bundles, unreadable_directories
from service import compilation
from service.bundles import ReadBundle, read_bundle, read_card
from service.device import call_cost_rows, find_device
from service.engine import Engine
from service.errors import InvalidInput, ModelNotFound, NotReady, excerpt
from service.executables import Executables
from service.programs import Grid, Program

logger = logging.getLogger(__name__)

MAX_REASON = 300
# How often the log tells of progress.
TELL_EVERY_S = 2.0
# Programs have shapes that suit a CPU; elsewhere a large batch takes little longer than a row.
ACCELERATOR_GRID = Grid(batch_sizes=(8, 64), max_tokens=65_536)

Programs = Mapping[str, Callable[[ModelCard], Sequence[Program]]]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is compiled and ready, with its card.

    ``content`` is what its ``model.json`` held, digest of the parameters included: a bundle with
    the same content is the same model. ``plots`` are its pictures, by name.
    """

    card: ModelCard
    engine: Engine
    content: bytes = b""
    plots: Mapping[str, bytes] = field(default_factory=dict)


# What is loaded already, or a bundle to be compiled, once it is read.
Found = Future[LoadedModel | ReadBundle]


class Registry:
    """The loaded models by name; ``programs`` says what the engine compiles for each wiring.

    ``selection`` names what is served, as NAME (its highest version) or NAME/VERSION; without one,
    that is the highest version of every name. ``grids`` are the shapes of programs that are to have
    other ones than their own, by the name of the program. ``kept`` is where executables lie that an
    earlier start has compiled. ``num_calls`` is how many calls run at once, and how many shapes are
    compiled at once. ``failures`` says of every model that could not be loaded why,
    ``loading`` how far those are that are under way.
    """

    def __init__(
        self,
        programs: Programs,
        *,
        selection: Sequence[str] = (),
        device: str = "auto",
        dtype: str = "float32",
        grids: Mapping[str, Grid] | None = None,
        kept: Path | None = None,
        num_calls: int = 1,
    ) -> None:
        self._programs = programs
        self._num_calls = num_calls
        self._grids = grids or {}
        self._known: set[str] = set()
        self._selection = selection
        self._device = device
        self._dtype = dtype
        self._kept = kept
        self._models: dict[str, LoadedModel] = {}
        # Versions beside those of ``_models`` that the selection names.
        self._others: dict[str, dict[int, LoadedModel]] = {}
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self.failures: dict[str, str] = {}
        self.loading: dict[str, str] = {}
        self.is_loaded = False

    def load(self, root: Path, name: str | None = None) -> None:
        """Loads and compiles what is selected under ``root``, or of that what has that name.

        What is loaded already and has not changed stays. A bundle that fails is logged and noted in
        ``failures``; what was served under its name before goes on serving, but an older version
        on disk never stands in for it. A bundle that is gone has not failed any more.
        """
        for path in unreadable_directories(root):
            logger.warning("%s cannot be read and is left out", path)
        try:
            with self._turn, ThreadPoolExecutor(1, thread_name_prefix="reader") as reader:
                plan = sorted(self._plan(root).items())
                self._forget_failures_but(dict(plan), name)
                chosen = [(wanted, paths) for wanted, paths in plan if name in (None, wanted)]
                for wanted, found in self._read_ahead(reader, chosen):
                    self._load(root, wanted, found)
            if not self._stopping.is_set():
                self._tell_of_unknown_grids()
        finally:
            self.is_loaded = True

    def _forget_failures_but(self, plan: Mapping[str, Sequence[Path]], name: str | None) -> None:
        """Failures count no more where nothing is there to be loaded."""
        for failed in self.failures.keys() - plan.keys():
            if name in (None, failed):
                del self.failures[failed]

    def _read_ahead(
        self, reader: Executor, plan: Sequence[tuple[str, Sequence[Path]]]
    ) -> Iterator[tuple[str, list[Found]]]:
        """Every name with what is found of it; that of the next is read meanwhile, and no more."""
        ahead: deque[tuple[str, list[Found]]] = deque()
        for name, paths in plan:
            if self._stopping.is_set():
                return
            found = [reader.submit(_counted(self._read), name, path) for path in paths]
            ahead.append((name, found))
            if len(ahead) > 1:
                yield ahead.popleft()
        if ahead and not self._stopping.is_set():
            yield ahead.popleft()

    def _tell_of_unknown_grids(self) -> None:
        for name in sorted(self._grids.keys() - self._known):
            logger.warning(
                "grids: expected names of programs (%s), got %s",
                ", ".join(sorted(self._known)),
                excerpt(name),
            )

    def stop(self) -> None:
        """Ends loading before the next shape is compiled; whoever stops need not wait for all."""
        self._stopping.set()

    def _plan(self, root: Path) -> dict[str, list[Path]]:
        """The bundles to serve, by name."""
        highest = find_bundles(root)
        if not self._selection:
            return {name: [path] for name, path in highest.items()}
        plan: dict[str, list[Path]] = {}
        for selected in self._selection:
            name, _, version = selected.partition("/")
            path = root / name / version if version else highest.get(name, root / name)
            plan.setdefault(name, []).append(path)
        return plan

    def _load(self, root: Path, name: str, found: Sequence[Found]) -> None:
        # Whatever is wrong with one bundle, down to a shape that does not compile, must not keep
        # the others from being served.
        try:
            with compilation.expected():
                self._swap(name, [self._prepare(name, one.result()) for one in found])
            self.failures.pop(name, None)
        except Exception as error:
            if self._stopping.is_set():
                return
            logger.exception("%s cannot be served", name)
            # Where bundles lie on this machine is nothing that answers should tell.
            reason = str(error).replace(f"{root.resolve()}/", "").replace(f"{root}/", "")
            self.failures[name] = reason[:MAX_REASON] or type(error).__name__
        finally:
            self.loading.pop(name, None)

    def _swap(self, name: str, models: Sequence[LoadedModel]) -> None:
        """Serves ``models`` under ``name`` and nothing else, the highest version by default."""
        old = {id(model): model for model in self.versions(name)}
        *others, default = sorted(models, key=lambda model: model.card.version)
        self._others[name] = {model.card.version: model for model in others}
        self._models[name] = default
        for model in models:
            old.pop(id(model), None)
        for model in old.values():
            told = f"{name}/{model.card.version} is replaced and has answered its last request"
            weakref.finalize(model.engine, logger.info, told)

    def _read(self, name: str, path: Path) -> LoadedModel | ReadBundle:
        """A bundle, or the model that is loaded, if it is the same."""
        content = read_card(path)
        for model in self.versions(name):
            if model.content == content and str(model.card.version) == path.name:
                return model
        return read_bundle(name, path, self._device)

    def _prepare(self, name: str, found: LoadedModel | ReadBundle) -> LoadedModel:
        """The model that was loaded already, or that of a bundle, compiled."""
        if isinstance(found, LoadedModel):
            return found
        content, bundle, plots = found
        device = find_device(self._device)
        expected = f"{name}/{bundle.card.version}"
        programs = self._programs[bundle.card.wiring](bundle.card)
        self._known |= {program.name for program in programs}
        chosen = [
            shaped(program, device, self._grids)
            for program in programs
            if self._num_calls > 1 or not program.is_part
        ]
        engine = Engine(
            bundle,
            chosen,
            self._dtype,
            Executables(self._kept, device),
            call_cost_rows(device),
        )
        started = time.monotonic()
        engine.warm_up(_Progress(self, name, expected, engine.num_shapes), self._num_calls)
        logger.info(
            "%s is ready: %d shapes, %d of them kept from before, in %.1f s on %s",
            expected,
            engine.num_shapes,
            engine.num_loaded,
            time.monotonic() - started,
            device.device_kind,
        )
        return LoadedModel(bundle.card, engine, content, plots)

    @property
    def is_stopping(self) -> bool:
        """Whether loading is to end."""
        return self._stopping.is_set()

    @property
    def models(self) -> dict[str, LoadedModel]:
        """All loaded models, by name, each in the version that is served by default."""
        return dict(self._models)

    def versions(self, name: str) -> list[LoadedModel]:
        """All loaded versions of a model, ascending; none if there is no such model."""
        default = self._models.get(name)
        others = self._others.get(name, {})
        return [*(others[v] for v in sorted(others)), default] if default else []

    def require_ready(self) -> None:
        """Checks that there is a model to serve.

        Raises:
            NotReady: if models are still loading, or none could be loaded.
        """
        self._require_loaded()
        if not self._models:
            raise NotReady(f"no model could be loaded{self._reasons()}")

    def _require_loaded(self) -> None:
        if not self.is_loaded:
            told = "; ".join(f"{name}: {far}" for name, far in sorted(self.loading.items()))
            raise NotReady("models are still loading" + (f"; {told}" if told else ""))

    def require_known(self, name: str) -> None:
        """Checks that a model of that name is loaded, or has failed to be.

        Raises:
            ModelNotFound: if it is neither.
            NotReady: if models are still loading.
        """
        self._require_loaded()
        if name not in self.failures:
            self.find(name)

    def find(self, name: str, version: int | None = None) -> LoadedModel:
        """The model of that name, by default in the version that is served.

        Raises:
            ModelNotFound: if there is none, or not in that version.
            NotReady: if models are still loading, or this one could not be loaded.
        """
        self._require_loaded()
        models = self.versions(name)
        if not models and name in self.failures:
            raise NotReady(f"{name} could not be loaded: {self.failures[name]}", "model")
        if not models:
            raise ModelNotFound(
                f"expected one of {sorted(self._models)}, got {excerpt(name)}", "model"
            )
        if version is None:
            return models[-1]
        for model in models:
            if model.card.version == version:
                return model
        loaded = [model.card.version for model in models]
        raise ModelNotFound(f"expected one of the versions {loaded}, got {version}", "version")

    def pinned(self, model: LoadedModel) -> "Registry":
        """A registry of ``model`` alone, for whoever has found it and means no other version."""
        pinned = Registry(self._programs)
        pinned._models = {model.card.name: model}
        pinned.is_loaded = True
        return pinned

    def choose(self, name: str | None, *wirings: str) -> LoadedModel:
        """The model of that name, of one of these wirings; by default the only one that is.

        Of several, it is the one whose bundle calls itself the default of its task.

        Raises:
            ModelNotFound: if there is none.
            InvalidInput: if the named one cannot do it, or several could and none is named.
            NotReady: if models are still loading, or the one that is meant could not be loaded.
        """
        if name is None:
            return self._only(wirings)
        model = self.find(name)
        if model.card.wiring not in wirings:
            able = self._able(wirings)
            raise InvalidInput(f"expected a model that can do this ({able}), got {name!r}", "model")
        return model

    def _only(self, wirings: Sequence[str]) -> LoadedModel:
        self.require_ready()
        able = self._able(wirings)
        if len(able) == 1:
            return self._models[able[0]]
        if able:
            return self._default(able)
        if self.failures:
            raise NotReady(f"no model that can do this could be loaded{self._reasons()}", "model")
        wanted = " or ".join(wirings)
        raise ModelNotFound(f"expected a loaded model of wiring {wanted}, got none", "model")

    def _default(self, able: Sequence[str]) -> LoadedModel:
        defaults = [name for name in able if self._models[name].card.task.get("is_default") is True]
        if len(defaults) != 1:
            raise InvalidInput(f"expected one of {able}, as several can do this, got none", "model")
        return self._models[defaults[0]]

    def _able(self, wirings: Sequence[str]) -> list[str]:
        return sorted(n for n, model in self._models.items() if model.card.wiring in wirings)

    def _reasons(self) -> str:
        return "".join(f"; {name}: {reason}" for name, reason in sorted(self.failures.items()))


def _counted(read: Callable[..., Any]) -> Callable[..., Any]:
    """``read`` as a part of this load, whatever thread it runs in."""
    with compilation.expected():
        return functools.partial(contextvars.copy_context().run, read)


def shaped(program: Program, device: Any, grids: Mapping[str, Grid]) -> Program:
    """``program`` over the shapes that ``grids`` has for it, or those that suit ``device``."""
    grid = grids.get(program.name)
    if grid is None and device.platform != "cpu" and not program.is_on_demand:
        grid = ACCELERATOR_GRID
    return grid.apply(program) if grid else program


class _Progress:
    """Tells how far a model is, in ``Registry.loading`` and now and then in the log."""

    def __init__(self, registry: Registry, name: str, model: str, total: int) -> None:
        self._registry = registry
        self._name = name
        self._model = model
        self._total = total
        self._turn = threading.Lock()
        self._done = 0
        self._told = -TELL_EVERY_S

    def __call__(self, shape: str) -> None:
        """Notes that ``shape`` comes next.

        Raises:
            InterruptedError: if loading is to end.
        """
        if self._registry.is_stopping:
            raise InterruptedError(f"{self._model}: stopped before {shape} was compiled")
        with self._turn:
            far = f"{self._done} of {self._total} shapes compiled"
            self._registry.loading[self._name] = far
            now = time.monotonic()
            if now - self._told >= TELL_EVERY_S:
                self._told = now
                logger.info("loading %s: %s, next %s", self._model, far, shape)
            self._done += 1

"""Which models are loaded; loading happens in a thread, from a directory of bundles."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.checkpoint import CheckpointError, ModelCard, find_bundles, load_model
from service.engine import Engine, Program
from service.errors import InvalidInput, ModelNotFound, NotReady, excerpt

logger = logging.getLogger(__name__)

MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is compiled and ready, with its card."""

    card: ModelCard
    engine: Engine


class Registry:
    """The loaded models by name; ``programs`` says what the engine compiles for each wiring.

    ``failures`` says of every bundle that could not be loaded why.
    """

    def __init__(self, programs: Mapping[str, Callable[[ModelCard], Sequence[Program]]]) -> None:
        self._programs = programs
        self._models: dict[str, LoadedModel] = {}
        self._stopping = threading.Event()
        self.failures: dict[str, str] = {}
        self.is_loaded = False

    def load(self, root: Path) -> None:
        """Loads and compiles the newest version of every bundle under ``root``, each by itself.

        One that fails is logged and noted in ``failures``; an older version never stands in for it.
        """
        try:
            for name, path in sorted(find_bundles(root).items()):
                if not self._stopping.is_set():
                    self._load(root, name, path)
        finally:
            self.is_loaded = True

    def stop(self) -> None:
        """Ends loading before the next shape is compiled; whoever stops need not wait for all."""
        self._stopping.set()

    def _load(self, root: Path, name: str, path: Path) -> None:
        # Whatever is wrong with one bundle, down to a shape that does not compile, must not keep
        # the others from being served.
        try:
            self._models[name] = self._compile(name, path)
        except Exception as error:
            if self._stopping.is_set():
                return
            logger.exception("%s cannot be served", path)
            # Where bundles lie on this machine is nothing that answers should tell.
            reason = str(error).replace(f"{root.resolve()}/", "").replace(f"{root}/", "")
            self.failures[name] = reason[:MAX_REASON] or type(error).__name__

    def _compile(self, name: str, path: Path) -> LoadedModel:
        bundle = load_model(path)
        found, expected = f"{bundle.card.name}/{bundle.card.version}", f"{name}/{path.name}"
        if found != expected:
            raise CheckpointError(f"{path}: expected the model {expected}, got {found}")
        engine = Engine(bundle, self._programs[bundle.card.wiring](bundle.card))
        logger.info("compiling %s version %d", name, bundle.card.version)
        engine.warm_up(lambda shape: self._note(name, shape))
        return LoadedModel(bundle.card, engine)

    def _note(self, name: str, shape: str) -> None:
        logger.debug("compiling %s %s", name, shape)
        if self._stopping.is_set():
            raise InterruptedError(f"{name}: stopped before {shape} was compiled")

    @property
    def models(self) -> dict[str, LoadedModel]:
        """All loaded models, by name."""
        return dict(self._models)

    def require_ready(self) -> None:
        """Checks that there is a model to serve.

        Raises:
            NotReady: if models are still loading, or none could be loaded.
        """
        if not self.is_loaded:
            raise NotReady("models are still loading")
        if not self._models:
            raise NotReady(f"no model could be loaded{self._reasons()}")

    def find(self, name: str) -> LoadedModel:
        """The model of that name.

        Raises:
            ModelNotFound: if there is none.
            NotReady: if models are still loading, or this one could not be loaded.
        """
        if not self.is_loaded:
            raise NotReady("models are still loading")
        if name in self.failures:
            raise NotReady(f"{name} could not be loaded: {self.failures[name]}", "model")
        if name not in self._models:
            raise ModelNotFound(
                f"expected one of {sorted(self._models)}, got {excerpt(name)}", "model"
            )
        return self._models[name]

    def choose(self, name: str | None, *wirings: str) -> LoadedModel:
        """The model of that name, of one of these wirings; by default the only one that is.

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
        if len(able) > 1:
            raise InvalidInput(f"expected one of {able}, as several can do this, got none", "model")
        if able:
            return self._models[able[0]]
        if self.failures:
            raise NotReady(f"no model that can do this could be loaded{self._reasons()}", "model")
        wanted = " or ".join(wirings)
        raise ModelNotFound(f"expected a loaded model of wiring {wanted}, got none", "model")

    def _able(self, wirings: Sequence[str]) -> list[str]:
        return sorted(n for n, model in self._models.items() if model.card.wiring in wirings)

    def _reasons(self) -> str:
        return "".join(f"; {name}: {reason}" for name, reason in sorted(self.failures.items()))

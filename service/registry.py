"""Which models are loaded; loading happens in a thread, from a directory of bundles."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.checkpoint import CheckpointError, ModelCard, find_bundles, load_model
from service.engine import Engine, Program
from service.errors import InvalidInput, ModelNotFound, NotReady

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is compiled and ready, with its card and the time it was trained."""

    card: ModelCard
    engine: Engine


class Registry:
    """The loaded models by name; ``programs`` says what the engine compiles for each wiring."""

    def __init__(self, programs: Mapping[str, Callable[[ModelCard], Sequence[Program]]]) -> None:
        self._programs = programs
        self._models: dict[str, LoadedModel] = {}
        self.is_loaded = False

    def load(self, root: Path) -> None:
        """Loads and compiles the newest version of every bundle under ``root``.

        Raises:
            CheckpointError: if there is no bundle, or one is damaged.
        """
        bundles = find_bundles(root)
        if not bundles:
            raise CheckpointError(f"{root}: expected NAME/VERSION/model.json, found none")
        for name, path in sorted(bundles.items()):
            bundle = load_model(path)
            engine = Engine(bundle, self._programs[bundle.card.wiring](bundle.card))
            logger.info("compiling %s version %d", name, bundle.card.version)
            engine.warm_up(lambda shape, name=name: logger.debug("compiling %s %s", name, shape))
            self._models[name] = LoadedModel(bundle.card, engine)
        self.is_loaded = True

    @property
    def models(self) -> dict[str, LoadedModel]:
        """All loaded models, by name."""
        return dict(self._models)

    def find(self, name: str) -> LoadedModel:
        """The model of that name.

        Raises:
            ModelNotFound: if none is loaded.
            NotReady: if models are still loading.
        """
        self._require_loaded()
        if name not in self._models:
            raise ModelNotFound(f"expected one of {sorted(self._models)}, got {name!r}", "model")
        return self._models[name]

    def choose(self, name: str | None, wiring: str) -> LoadedModel:
        """The model of that name, which must have that wiring; by default the only one that has.

        Raises:
            ModelNotFound: if there is none.
            InvalidInput: if the named one cannot do it, or several could and none is named.
            NotReady: if models are still loading.
        """
        self._require_loaded()
        able = sorted(n for n, model in self._models.items() if model.card.wiring == wiring)
        if name is not None:
            if self.find(name).card.wiring != wiring:
                raise InvalidInput(
                    f"expected a model that can do this ({able}), got {name!r}", "model"
                )
            return self._models[name]
        if not able:
            raise ModelNotFound(f"expected a loaded model of wiring {wiring}, got none", "model")
        if len(able) > 1:
            raise InvalidInput(f"expected one of {able}, as several can do this, got none", "model")
        return self._models[able[0]]

    def _require_loaded(self) -> None:
        if not self.is_loaded:
            raise NotReady("models are still loading")

"""What a recipe is: data, objective, evaluation and plots of one wiring."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from models.vocabulary import Vocabulary
from training.step import Batch, Objective, Optimization

Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """How the bundle of a recipe is called, wired, prompted and limited."""

    name: str
    wiring: str
    config: Any
    vocabulary: Vocabulary
    target_vocabulary: Vocabulary | None = None
    limits: dict[str, int]
    task: dict[str, Any]
    corpus: dict[str, Any]


@runtime_checkable
class Recipe(Protocol):
    """One trainable task.

    A dataclass. A batch is a pure function of the seed and the step, so a run can be taken up at
    any step, and every process of several makes the same one.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def optimization(self) -> Optimization:
        """How long and how hard to train."""
        ...

    @property
    def seed(self) -> int:
        """What every random draw follows from."""
        ...

    def identity(self) -> Identity:
        """What the bundle will say of itself."""
        ...

    def batch(self, step: int) -> Batch:
        """The data of one step, counted from 0."""
        ...

    def loss(self, model: Any, batch: Any) -> Objective:
        """The objective, in nats."""
        ...

    def training_figures(self, losses: list[float]) -> Figures:
        """What the book reports of the losses along the way."""
        ...

    def evaluate(self, model: Any) -> Figures:
        """Every other figure of the recipe, measured on the model."""
        ...

    def plot(self, model: Any, figures: Figures, directory: Path) -> None:
        """Draws the figures into ``directory`` as PNG files."""
        ...


def smoothed_losses(losses: list[float], steps: tuple[int, ...], width: int) -> dict[str, float]:
    """The mean of the last ``width`` losses at each of ``steps`` that the run reached."""
    return {
        str(step): sum(losses[max(step - width, 0) : step]) / min(step, width)
        for step in steps
        if step <= len(losses)
    }

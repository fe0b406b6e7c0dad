"""The recipes that take any text, by the wiring of their models: to train, and to measure."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.checkpoint import ModelCard
from models.wirings import WIRINGS
from training.causal_lm_ragged import RaggedCausalLMRecipe
from training.masked_lm_ragged import RaggedMaskedLMRecipe
from training.own_text import load_to_evaluate, load_to_train
from training.perceiver import PerceiverRecipe
from training.recipe import Recipe
from training.step import Optimization

TEXT_RECIPES: dict[str, Any] = {
    "encoder": RaggedMaskedLMRecipe,
    "decoder": RaggedCausalLMRecipe,
    "perceiver": PerceiverRecipe,
}
OWN_PRESETS = {"default": "own", "debug": "own_debug"}


def recipe_for_text(
    recipe: Any, preset: str, paths: Sequence[Path], *, vocabulary: str, special: str, name: str
) -> Recipe:
    """A recipe that trains the model ``name`` on the files at ``paths``.

    ``vocabulary`` is "build", or the path of a file that gives it.

    Raises:
        CorpusError: if the files do not do.
    """
    text = load_to_train(paths, vocabulary, special)
    return getattr(recipe, OWN_PRESETS[preset])(text.corpus, text.vocabulary, name)


def recipe_to_evaluate(card: ModelCard, paths: Sequence[Path]) -> Recipe:
    """A recipe that measures the model of ``card``, which is one of text, on the files.

    Raises:
        CorpusError: if the files do not do.
    """
    text = load_to_evaluate(paths, card.vocabulary, card.corpus)
    recipe = TEXT_RECIPES[card.wiring]
    fields = {field.name for field in dataclasses.fields(recipe)}
    settings = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in card.recipe.get("settings", {}).items()
        if name in fields
    }
    # The cost of reading does not depend on what is read.
    without_cost = {"cost_lengths": ()} if "cost_lengths" in fields else {}
    return recipe(
        **{
            **settings,
            **without_cost,
            "corpus": text.corpus,
            "others": (),
            "vocabulary": text.vocabulary,
            "config": WIRINGS[card.wiring].config(**card.config),
            "optimization": Optimization(**card.recipe["optimization"]),
            "name": card.name,
            "seed": card.recipe["seed"],
        }
    )

"""A model card in Markdown, written from what ``model.json`` says.

Source: Mitchell et al. (2018), arXiv:1810.03993, for what a card should tell.
"""

import datetime
from pathlib import Path
from typing import Any

from models.checkpoint import ModelCard, read_card
from models.vocabulary import Vocabulary

CARD_NAME = "README.md"
MAX_LIST = 8
MAX_ALPHABET = 200


def write_model_card(bundle: Path) -> Path:
    """Writes the card of a bundle beside its ``model.json``, and gives its path."""
    card, sha256 = read_card(bundle)
    pictures = sorted(path.name for path in (bundle / "plots").glob("*.png"))
    path = bundle / CARD_NAME
    path.write_text(model_card(card, sha256, pictures), encoding="utf-8")
    return path


def model_card(card: ModelCard, sha256: str, pictures: list[str]) -> str:
    """The card as Markdown."""
    created = datetime.datetime.fromtimestamp(card.created, tz=datetime.UTC).date().isoformat()
    sections = [
        f"# {card.name}, version {card.version}",
        f"A model of wiring `{card.wiring}` for the task `{card.task['name']}`, trained {created}.",
        "## Input",
        _table(
            [
                ("alphabet", _alphabet(card.vocabulary)),
                ("normalization", card.vocabulary.normalization),
                ("length in tokens", f"{card.limits['min_len']} to {card.limits['max_len']}"),
            ]
        ),
        *_output(card),
        "## Figures",
        _table(_flat(card.figures)),
        *(f"![{Path(name).stem.replace('_', ' ')}](plots/{name})" for name in pictures),
        "## Recipe",
        f"```sh\n{card.recipe['command']}\n```",
        _table(_flat({key: value for key, value in card.recipe.items() if key != "command"})),
        "## Data",
        _table(_flat(card.corpus)),
        "## Model",
        _table([*card.config.items(), ("SHA-256 of the parameters", f"`{sha256}`")]),
        _table(_flat(card.library_versions)),
    ]
    return "\n\n".join(sections) + "\n"


def _output(card: ModelCard) -> list[str]:
    """What a model writes, where that is not in the alphabet it reads."""
    if card.target_vocabulary is None:
        return []
    return ["## Output", _table([("alphabet", _alphabet(card.target_vocabulary))])]


def _alphabet(vocabulary: Vocabulary) -> str:
    """The symbols as code in a table, characters that do not print by their escapes."""
    symbols = vocabulary.characters
    shown = vocabulary.separator.join(
        symbol if symbol.isprintable() else symbol.encode("unicode_escape").decode()
        for symbol in symbols[:MAX_ALPHABET]
    )
    more = len(symbols) - MAX_ALPHABET
    rest = f" and {more} more in model.json" if more > 0 else ""
    kind = "symbols" if vocabulary.separator else "characters"
    # A longer fence than any run of backticks within, and one that does not touch them.
    fence = "``" if "`" in shown else "`"
    gap = " " if "`" in (shown[:1], shown[-1:]) else ""
    return f"{fence}{gap}{shown}{gap}{fence}{rest} ({len(symbols)} {kind})"


def _table(rows: list[tuple[str, Any]]) -> str:
    lines = [f"| {name} | {_shown(value)} |" for name, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value)
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if text.isspace():
        text = f"`{text}`"
    return text.replace("|", "\\|")


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested figures as (path, value) pairs; long lists are left to ``model.json``."""
    rows: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name} ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                rows += _flat(item, f"{prefix}{name} ")
        elif isinstance(value, list) and len(value) > MAX_LIST:
            rows.append((f"{prefix}{name}", f"{len(value)} values in model.json"))
        else:
            rows.append((f"{prefix}{name}", value))
    return rows

"""``models`` and ``ready``: what the service has, and whether it can be used."""

import json
from collections.abc import Iterable

from triwire import calls
from triwire.answers import Model
from triwire.cli.screen import table, visible
from triwire.cli.session import Session
from triwire.errors import TriwireError

NOT_READY = "not_ready"


def models(session: Session) -> None:
    """Shows every model in a line, or all that is known of one."""
    if session.options.name:
        for model in session.results(calls.model(session.options.name)):
            session.screen.write(*_details(model))
        return
    for found in session.results(calls.models()):
        rows = [
            [
                model.id,
                model.wiring,
                str(model.task.get("name", "")),
                str(model.version),
                _lengths(model),
                visible(model.failure or ""),
            ]
            for model in found
        ]
        header = ["model", "wiring", "task", "version", "reads", ""]
        session.screen.write(*table(header, rows, "<<<>"))


def _lengths(model: Model) -> str:
    return f"{model.limits.get('min_len', 0)} to {model.limits.get('max_len', '?')} symbols"


def _details(model: Model) -> Iterable[str]:
    fields = {
        "model": model.id,
        "wiring": model.wiring,
        "version": f"{model.version} of {', '.join(map(str, model.versions))}",
        "task": _told(model.task),
        "reads": _lengths(model),
        "alphabet": json.dumps(model.alphabet, ensure_ascii=False),
        "mask": model.mask_token,
        "normalization": model.normalization,
        "failure": model.failure,
        "config": _told(model.config),
        "figures": _told(_numbers(model.figures)),
        "plots": ", ".join(model.plots),
    }
    rows = [[name, visible(str(value))] for name, value in fields.items() if value]
    return table(["", ""], rows)


def _numbers(figures: dict[str, object]) -> dict[str, object]:
    """The figures that are one number; the others are in ``--json``."""
    return {name: value for name, value in figures.items() if isinstance(value, int | float)}


def _told(values: dict[str, object]) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in values.items())


def ready(session: Session) -> None:
    """Says whether the service can be used.

    Raises:
        TriwireError: if it cannot.
    """
    for readiness in session.results(calls.ready()):
        if not readiness.is_ready:
            raise TriwireError(str(readiness.reason), code=NOT_READY, status=503)
        session.screen.write(f"ready: {', '.join(readiness.models)}")
        for name, reason in readiness.failures.items():
            session.screen.write(f"could not be loaded: {name}: {visible(reason)}")

"""``python -m service``: serves the models of a directory."""

import argparse
import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

# Imports make objects that stay, and Python would look through them for garbage again and again.
if __name__ == "__main__":
    gc.disable()

from pydantic import ValidationError

from models import allocator, cores
from models.directories import find_bundles, unreadable_directories
from service import compilation, device, logs, tracing
from service.app import create_app
from service.server import Server
from service.settings import SECRETS, Settings, SettingsFileError, load_settings

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal ends it.

    Gives the exit status: 2 for wrong settings, 1 for what is missing or cannot be started.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    given = {k: v for k, v in vars(parser().parse_args(arguments)).items() if v is not None}
    file = given.pop("config", os.environ.get("TRIWIRE_CONFIG"))
    try:
        settings = load_settings(file, **given)
    except SettingsFileError as error:
        sys.stderr.write(f"error: config: {error}\n")
        return 2
    except ValidationError as error:
        sys.stderr.writelines(f"error: {_explain(detail)}\n" for detail in error.errors())
        return 2
    logs.set_up(settings.log_format, settings.log_level)
    if allocator.keep_memory(1 + cores.num_cores()):
        logger.info("memory is kept for the next call")
    if cores.run_calls_side_by_side():
        logger.info("calls on the CPU run in the threads that make them")
    try:
        server = _prepare(settings)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    server.run()
    return 0 if server.started else 1


def _prepare(settings: Settings) -> Server:
    """The server, once all that it needs is found to be there.

    Raises:
        ValueError: if something is not; the message names the setting.
    """
    _require_models(settings)
    device.reserve(settings.device)
    provider = tracing.exporting() if settings.tracing else None
    if kept := compilation.cache_directory(settings.compilation_cache):
        logger.info("what is compiled is kept in %s", kept)
        compilation.leave_out_cache_of_jax()
    return Server(create_app(settings, tracer_provider=provider, kept=kept))


def _require_models(settings: Settings) -> None:
    found = find_bundles(settings.checkpoints)
    if not found:
        closed = unreadable_directories(settings.checkpoints)
        raise ValueError(
            f"checkpoints: expected models as NAME/VERSION/model.json under "
            f"{settings.checkpoints}, found none"
            + "".join(f"; {path} cannot be read" for path in closed)
        )
    for selected in settings.models:
        is_there = (settings.checkpoints / selected / "model.json").is_file()
        if selected not in found and not ("/" in selected and is_there):
            raise ValueError(f"models: expected models of {sorted(found)}, got {selected!r}")


def _explain(detail: Any) -> str:
    """What is wrong with a setting; a secret is not told."""
    name = str(detail["loc"][0])
    told = detail["msg"].removeprefix("Value error, ")
    return f"{name}: {told}" + ("" if name in SECRETS else f", got {detail['input']!r}")


def parser() -> argparse.ArgumentParser:
    """One flag for every setting, but for secrets, which every user of a machine could read."""
    top = argparse.ArgumentParser(
        prog="python -m service", description=Settings.__doc__, allow_abbrev=False
    )
    top.add_argument(
        "--config",
        help="TOML or .env file with settings; variables and flags win over it "
        "(default: $TRIWIRE_CONFIG)",
    )
    for name, field in Settings.model_fields.items():
        if name not in SECRETS:
            flag = "--" + name.replace("_", "-")
            default = field.default if field.default not in ((), None, "") else "none"
            top.add_argument(flag, dest=name, help=f"{field.description} (default: {default})")
    return top


if __name__ == "__main__":
    sys.exit(main())

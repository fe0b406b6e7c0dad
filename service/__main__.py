"""``python -m service``: serves the models of a directory."""

import argparse
import logging
import sys
from collections.abc import Sequence

import uvicorn
from pydantic import ValidationError

from models.checkpoint import find_bundles
from service.app import create_app
from service.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal ends it.

    Gives the exit status: 2 for wrong settings, 1 where there is no model to serve.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    for library in ("absl", "jax"):
        logging.getLogger(library).setLevel(logging.WARNING)
    given = {k: v for k, v in vars(parser().parse_args(arguments)).items() if v is not None}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        for detail in error.errors():
            name = ".".join(map(str, detail["loc"]))
            sys.stderr.write(f"error: {name}: {detail['msg']}, got {detail['input']!r}\n")
        return 2
    if not find_bundles(settings.checkpoints):
        sys.stderr.write(
            f"error: checkpoints: expected models as NAME/VERSION/model.json under "
            f"{settings.checkpoints}, found none\n"
        )
        return 1
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        workers=1,
        access_log=False,
        log_config=None,
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """One flag for every setting."""
    top = argparse.ArgumentParser(prog="python -m service", description=Settings.__doc__)
    for name, field in Settings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        top.add_argument(flag, dest=name, help=f"{field.description} (default: {field.default})")
    return top


if __name__ == "__main__":
    sys.exit(main())

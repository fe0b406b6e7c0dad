"""``serve`` and ``train``: the other rooms of a checkout, where there is one."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from triwire.cli.inputs import UsageError

CHECKOUT = Path(__file__).parent.parent.parent
# The package and module that a command runs, and the extra that installs what they need.
ROOMS = {"serve": ("service", "__main__", "serve"), "train": ("training", "cli", "train")}


def run(command: str, arguments: Sequence[str], checkout: Path = CHECKOUT) -> int:
    """Does what ``python -m service`` or ``python -m training`` does; gives its exit status.

    Raises:
        UsageError: if only the client is installed.
    """
    package, module, extra = ROOMS[command]
    if not (checkout / "pyproject.toml").is_file() or not (checkout / package).is_dir():
        raise UsageError(
            f"triwire {command} needs a checkout of Triwire, and here is only the client; in one, "
            f"`make {'serve' if command == 'serve' else 'install'}` sets it up"
        )
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    try:
        room = importlib.import_module(f"{package}.{module}")
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == package:
            raise
        raise UsageError(
            f"triwire {command} needs {error.name}, which is not installed; "
            f"`pip install --editable '{checkout}[{extra}]'` installs it"
        ) from error
    return room.main(arguments)

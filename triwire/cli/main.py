"""``triwire``: from arguments to an exit status."""

import io
import os
import sys
from collections.abc import Sequence

from triwire.cli import rooms
from triwire.cli.inputs import UsageError
from triwire.cli.options import parser
from triwire.cli.screen import detect, visible
from triwire.cli.session import Session
from triwire.client import Triwire
from triwire.errors import TriwireError

FAILED = 1
WRONG_COMMAND = 2
REFUSED = 3
NOT_ALLOWED = 4
INTERRUPTED = 130
READER_LEFT = 141
NOT_ALLOWED_STATUSES = (401, 403)
# Of these the input is no cause; everything else from 400 to 499 is.
BUSY_STATUS = 429


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the arguments say; gives the exit status, which ``triwire --help`` explains."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if given and given[0] in rooms.ROOMS:
            return rooms.run(given[0], given[1:])
        _run(given)
        sys.stdout.flush()
    except UsageError as error:
        return _fail(str(error), WRONG_COMMAND)
    except TriwireError as error:
        return _fail(_told(error), status_of(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer would be written, in vain, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    return 0


def _run(arguments: Sequence[str]) -> None:
    options = parser().parse_args(arguments)
    # What the output cannot show must not end the command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    screen = detect(options.color, os.environ)
    with Triwire(options.url, timeout_s=options.timeout, max_retries=options.retries) as client:
        options.run(Session(client, options, screen))


def status_of(error: TriwireError) -> int:
    """The exit status for an error of a call."""
    if error.status is None:
        return WRONG_COMMAND if error.code == "invalid_value" else FAILED
    if error.status in NOT_ALLOWED_STATUSES:
        return NOT_ALLOWED
    return REFUSED if 400 <= error.status < 500 and error.status != BUSY_STATUS else FAILED


def _told(error: TriwireError) -> str:
    request = f" (request {error.request_id})" if error.request_id else ""
    return visible(error.message) + request


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"triwire: {message}\n")
    return status

"""The options of every command."""

import argparse
from collections.abc import Callable

from triwire.cli import array_commands, catalogue_commands, text_commands
from triwire.cli.rooms import ROOMS
from triwire.cli.session import Session
from triwire.connection import DEFAULT_URL, KEY_VARIABLE, MAX_RETRIES, TIMEOUT_S, URL_VARIABLE
from triwire.version import __version__

BATCH_SIZE = 16
EPILOG = f"""\
The service is at --url, else at ${URL_VARIABLE}, else at {DEFAULT_URL}; the key is that of
${KEY_VARIABLE}. TEXT that begins with a dash comes after --.

exit status:
  0    done
  1    the service could not be reached, is not ready, or failed
  2    the command is wrong, or a file cannot be read or written
  3    the service refused the input: the message names the field, what was expected, what came
  4    the service wants an API key, or another one
  130  interrupted
  141  whoever read the output has left
"""


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(
        prog="triwire",
        description="Asks a service of Triwire, or starts and trains what it serves.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"triwire {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")
    _add_fill_mask(commands)
    _add_decode(commands)
    _add_complete(commands)
    _add_latents(commands)
    _add_embeddings(commands)
    models = _add(commands, "models", "what is loaded", catalogue_commands.models)
    models.add_argument("name", nargs="?", metavar="NAME", help="all that is known of one model")
    _add(commands, "ready", "whether the service can be used", catalogue_commands.ready)
    for command, (package, *_) in ROOMS.items():
        commands.add_parser(command, help=f"python -m {package}, with its options", add_help=False)
    return top


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    run: Callable[[Session], None],
) -> argparse.ArgumentParser:
    """A command with the options that all have."""
    command = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(run=run)
    command.add_argument("--json", action="store_true", help="the answer of the service as it is")
    command.add_argument("--url", help="where the service is")
    command.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="longest wait for an answer, with all attempts (default: %(default)g)",
    )
    command.add_argument(
        "--retries",
        type=_natural,
        default=MAX_RETRIES,
        metavar="N",
        help="attempts after the first, where the service is busy or away (default: %(default)s)",
    )
    command.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: on a terminal with colours, unless NO_COLOR is set",
    )
    return command


def _add_texts(command: argparse.ArgumentParser, what: str = "TEXT") -> None:
    command.add_argument(
        "text", nargs="*", metavar=what, help="- reads lines from standard input, as nothing does"
    )
    command.add_argument(
        "--file", action="append", default=[], help="a text on each line; may be repeated"
    )
    _add_asking(command)


def _add_asking(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", help="by default the only one that can do the task")
    command.add_argument(
        "--batch-size",
        type=_positive,
        default=BATCH_SIZE,
        metavar="N",
        help="inputs of one request, and of one answer in --json (default: %(default)s)",
    )


def _add_attention(command: argparse.ArgumentParser) -> None:
    command.add_argument("--attention", action="store_true", help="show where the model looked")
    command.add_argument("--layer", type=_natural, metavar="N", help="default: the last")
    command.add_argument("--head", type=_natural, metavar="N", help="default: the mean of all")


def _add_fill_mask(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(commands, "fill-mask", "which characters are missing", text_commands.fill_mask)
    _add_texts(command)
    _add_attention(command)
    command.add_argument("--top-k", type=_positive, metavar="N", help="candidates (default: 5)")
    command.add_argument(
        "--target", action="append", metavar="SYMBOL", help="only this one; may be repeated"
    )
    command.add_argument(
        "--mask-token",
        metavar="SYMBOL",
        help="what stands for a mask (default: <mask>, or _ where no text has one)",
    )
    command.add_argument(
        "--evidence", action="store_true", help="what each side of a mask says of it"
    )


def _add_decode(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(commands, "decode", "what a source becomes", text_commands.decode)
    _add_texts(command)
    _add_attention(command)
    command.add_argument("--max-new-tokens", type=_positive, metavar="N")
    command.add_argument("--num-beams", type=_positive, metavar="N", help="default: 1, greedy")
    command.add_argument("--stream", action="store_true", help="write symbols as they come")


def _add_complete(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(commands, "complete", "how a text goes on", text_commands.complete)
    _add_texts(command)
    command.add_argument("--max-tokens", type=_positive, metavar="N", help="default: 16")
    command.add_argument("--temperature", type=float, help="0 takes the likeliest (default: 1)")
    command.add_argument("--top-p", type=float, help="keeps the likeliest of that mass, 1 is all")
    command.add_argument("--n", type=_positive, metavar="N", help="continuations (default: 1)")
    command.add_argument("--stop", action="append", help="ends it; may be repeated")
    command.add_argument("--seed", type=int, help="the same one draws the same text")
    command.add_argument("--echo", action="store_true", help="put the prompt first")
    command.add_argument("--stream", action="store_true", help="write text as it comes")


def _add_latents(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(
        commands,
        "latents",
        "a fixed number of vectors for long inputs",
        array_commands.latents,
    )
    command.add_argument(
        "file",
        nargs="*",
        metavar="FILE",
        help="a text, or an array N x D in .npy; - or nothing is standard input",
    )
    command.add_argument("--lines", action="store_true", help="each line is an input")
    _add_output(command)
    _add_asking(command)
    _add_attention(command)
    command.add_argument(
        "--reconstruct", action="store_true", help="read the text back out of the latents"
    )


def _add_embeddings(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(commands, "embeddings", "one vector for a text", array_commands.embeddings)
    _add_texts(command)
    _add_output(command)


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-o", "--output", metavar="FILE.npy", help="write the array there; - is standard output"
    )


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return seconds

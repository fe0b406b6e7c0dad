"""What can go wrong with a request, free of HTTP; ``answers.py`` maps these to answers.

TriwireError
+- InvalidInput        a value of the request is wrong
+- MalformedRequest    the request is not JSON in UTF-8
+- Unauthorized        the request shows no key that we know
+- Forbidden           no key allows it
+- UnsupportedMedia    the body is of a type that the call does not take
+- TooLarge            the body, or what was asked for, exceeds a limit
+- ModelNotFound       no model of that name is loaded
+- NotReady            models are still loading, the worker is down, or the service is leaving
+- Overloaded          the queue is full, or too many requests are under way
+- DeadlineExceeded    the answer was not ready in time
+- NonFiniteOutput     a model gave NaN or infinity
"""

import reprlib


class TriwireError(Exception):
    """A request that cannot be answered; ``param`` names the field at fault, where one is.

    ``message`` is what the error says without that name.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.message = message
        self.param = param


class InvalidInput(TriwireError):
    """A value of the request is wrong; the message says what was expected and what came."""


class MalformedRequest(TriwireError):
    """The request is not JSON in UTF-8."""


class Unauthorized(TriwireError):
    """The request shows no key that we know; ``has_key`` where it shows another one."""

    def __init__(self, message: str, *, has_key: bool) -> None:
        super().__init__(message)
        self.has_key = has_key


class Forbidden(TriwireError):
    """No key allows it, as the service is set up."""


class UnsupportedMedia(TriwireError):
    """The body is of a type that the call does not take."""


class TooLarge(TriwireError):
    """The body, or what was asked for, exceeds a limit."""


class ModelNotFound(TriwireError):
    """No model of that name is loaded."""


class NotReady(TriwireError):
    """Models are still loading, the worker is down, or the service is leaving."""


class Overloaded(TriwireError):
    """The queue is full, or too many requests are under way."""


class DeadlineExceeded(TriwireError):
    """The answer was not ready in time."""


class NonFiniteOutput(TriwireError):
    """A model gave NaN or infinity."""


class _Excerpt(reprlib.Repr):
    """Writes JSON values as their senders know them, in bounded time however large or deep."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.maxlevel = 1
        self.maxlist = 3

    def repr_str(self, x: str, level: int) -> str:
        """A string, quoted; the start of a long one, with its length."""
        if len(x) <= self.limit:
            return repr(x)
        return f"{x[: self.limit]!r}... ({len(x)} characters)"

    def repr_bool(self, x: bool, level: int) -> str:  # noqa: FBT001
        """A boolean, as JSON has it."""
        return "true" if x else "false"

    def repr_dict(self, x: dict[str, object], level: int) -> str:
        """An object, without its fields."""
        return "{...}" if x else "{}"

    def repr_NoneType(self, x: None, level: int) -> str:  # noqa: N802
        """Null, as JSON has it."""
        return "null"


def excerpt(value: object, limit: int = 40) -> str:
    """``value`` as a message may show it: strings quoted, and cut where it is long."""
    # As ``repr_str`` has it; making a ``Repr`` takes longer than that.
    if type(value) is str and len(value) <= limit:
        return repr(value)
    return _Excerpt(limit).repr(value)

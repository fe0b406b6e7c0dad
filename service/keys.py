"""API keys: who may call what. Keys are compared in constant time and never logged."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path

from starlette.datastructures import Headers

from service.errors import Unauthorized

# What needs a key only where the setting says so, by the name that it has there.
GROUPS = {
    "probes": ("/livez", "/readyz", "/health", "/v2/health/live", "/v2/health/ready"),
    "metrics": ("/metrics",),
    "docs": ("/", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"),
}


class KeyFileError(ValueError):
    """The file of keys cannot be used."""


class Keys:
    """The keys that open the service; without any it is open to all.

    ``protected`` names the groups of calls that need a key beside the API itself.
    """

    def __init__(
        self, keys: Iterable[str] = (), file: Path | None = None, protected: Sequence[str] = ()
    ) -> None:
        self._given = [_digest(key.encode()) for key in keys]
        self._file = file
        self._open = {
            path for group, paths in GROUPS.items() if group not in protected for path in paths
        }
        self._digests: list[bytes] = []
        self.read()

    def read(self) -> None:
        """Reads the file anew: a key on each line, empty lines and those with # in front left out.

        Raises:
            KeyFileError: if it cannot be read or holds no key.
        """
        self._digests = [*self._given, *(_read(self._file) if self._file else ())]

    @property
    def are_there(self) -> bool:
        """Whether the service needs a key at all."""
        return bool(self._digests)

    def require(self, path: str, headers: Headers) -> None:
        """Checks that a call may be made.

        Raises:
            Unauthorized: if it needs a key and shows none that we know.
        """
        if not self._digests or path in self._open:
            return
        # The files of the page tell no more than the page does.
        if path.startswith("/static/") and "/" in self._open:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized(
                "Authorization: expected Bearer and a key of this service, got none", has_key=False
            )
        if not self._knows(key.strip()):
            raise Unauthorized(
                "Authorization: expected a key of this service, got another one", has_key=True
            )

    def _knows(self, key: str) -> bool:
        # Headers are decoded as Latin-1, whatever the client wrote. All keys are compared, and only
        # digests of them, so that the time tells nothing of any.
        digest = _digest(key.encode("latin-1"))
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _read(file: Path) -> list[bytes]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is not in UTF-8"
        raise KeyFileError(f"api_keys_file: expected a readable file, got {file}: {told}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise KeyFileError(f"api_keys_file: expected a key on each line, got none in {file}")
    return [_digest(key.encode()) for key in keys]

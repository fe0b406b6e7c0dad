"""``python -m service.probe``: whether the service beside it is ready, for a health check.

Status 0 says that it is, 1 that it is not, and why is printed. Only the standard library is
imported, as this runs every few seconds, and no proxy is asked, whatever the environment names.
"""

import http.client
import os
import sys
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 4.0
# What stands for every address is none that one can call.
CALLABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Asks ``/readyz`` where the variables of the service say that it listens."""
    host = environment.get("TRIWIRE_HOST", "127.0.0.1")
    port = int(environment.get("TRIWIRE_PORT", "8000"))
    try:
        status, said = _ask(CALLABLE.get(host, host), port, _authorization(environment))
    except (OSError, http.client.HTTPException) as error:
        sys.stdout.write(f"/readyz on port {port}: {error}\n")
        return 1
    sys.stdout.write(f"{status} {said}\n")
    return 0 if status == http.HTTPStatus.OK else 1


def _ask(host: str, port: int, headers: Mapping[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz", headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def _authorization(environment: Mapping[str, str]) -> dict[str, str]:
    """The first key of the service, as probes may be protected too."""
    keys = environment.get("TRIWIRE_API_KEYS", "").split(",")
    if file := environment.get("TRIWIRE_API_KEYS_FILE"):
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        keys += [line for line in lines if not line.startswith("#")]
    given = [key.strip() for key in keys if key.strip()]
    return {"Authorization": f"Bearer {given[0]}"} if given else {}


if __name__ == "__main__":
    sys.exit(main())

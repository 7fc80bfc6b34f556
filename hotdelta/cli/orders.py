"""Orders for a running server: rollback, pin, resume, release. The token is read from a file or the environment.

Never from an argument: everybody on the machine could read it in the list of processes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from hotdelta.cli.output import print_json, warn
from hotdelta.cli.server_http import ServerHttp, require_ok
from hotdelta.errors import ConfigurationError, RequestError

TOKEN_VARIABLE = "HOTDELTA_ADMIN_TOKEN"  # noqa: S105 - the name of a variable, not a token
TIMEOUT_SECONDS = 150.0

_FORGOTTEN = (
    "a restart of the server forgets this order and goes back to its own settings. "
    "start the server with --state-dir, and without --pin, to keep orders"
)
_PATHS = {
    "rollback": "/model/rollback",
    "pin": "/model/pin",
    "resume": "/model/resume",
    "release": "/model/quarantine/release",
}


def run(options: argparse.Namespace) -> int:
    """0 when the order was carried out."""
    answer = _send(options)
    if options.is_json:
        print_json(answer)
    else:
        follows = " and follows again" if options.command == "resume" else ""
        print(f"{options.command}: {options.url} serves {answer.get('position') or 'nothing yet'}{follows}")
    if answer.get("survives_restart") is False:
        warn(_FORGOTTEN)
    return 0


def _send(options: argparse.Namespace) -> Mapping[str, Any]:
    """What the server says of an order that it carried out. Raises RequestError, ConfigurationError."""
    order, token = _order(options), _token(options.token_file)
    with ServerHttp(options.url, timeout_seconds=TIMEOUT_SECONDS) as server:
        answer = server.post(
            _PATHS[options.command],
            order,
            token=token,
            if_silent="GET /model/version says whether the order was carried out",
        )
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise RequestError(
            f"{options.url} does not know this token",
            hint=f"give one of the server's --admin-token-file with --token-file or {TOKEN_VARIABLE}",
        )
    return require_ok(answer, options.url)


def _order(options: argparse.Namespace) -> dict[str, Any]:
    given: Mapping[str, Any] = vars(options)
    order = {name: given[name] for name in ("position", "deltas") if given.get(name) is not None}
    if options.command == "rollback" and len(order) != 1:
        raise ConfigurationError("say how far to go back", hint="give a position, or --deltas N")
    return order


def _token(path: Path | None) -> str:
    """Raises ConfigurationError. A line `name:token`, as the server's file has them, will do."""
    try:
        text = path.read_text() if path is not None else os.environ.get(TOKEN_VARIABLE, "")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    token = lines[0].rpartition(":")[2] if lines else ""
    source = path or TOKEN_VARIABLE
    if not token:
        raise ConfigurationError("there is no token", hint=f"give --token-file, or set {TOKEN_VARIABLE}")
    if len(lines) > 1:
        raise ConfigurationError(f"{source} holds {len(lines)} tokens", hint="leave yours alone in it")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"what {source} holds is no token", hint="copy it from the server's file")
    return token

"""Orders for a running server over HTTP: rollback, pin, resume, release. Never imports TensorFlow."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotdelta.errors import ConfigurationError, HotdeltaError, RequestError

TOKEN_VARIABLE = "HOTDELTA_ADMIN_TOKEN"  # noqa: S105 - the name of a variable, not a token
TIMEOUT_SECONDS = 150.0

COMMANDS = {
    "rollback": "take a running server back to an earlier position, where it stays",
    "pin": "keep a running server at a position, or where it is",
    "resume": "let a server that was rolled back or pinned follow again",
    "release": "let a server take a quarantined update whatever its values are",
}
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


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            allow_abbrev=False,
        )
        command.add_argument("url", metavar="URL", help="the server, for example http://127.0.0.1:8000")
        if name in ("rollback", "release"):
            _add_position(command, "to which position, for example 3.17", is_required=name == "release")
        if name == "pin":
            _add_position(command, "at which position (default: the one that is served)", is_required=False)
        if name == "rollback":
            command.add_argument("--deltas", type=int, metavar="N", help="by how many updates instead")
        command.add_argument(
            "--token-file",
            type=Path,
            metavar="FILE",
            help=f"holds the token (default: the variable {TOKEN_VARIABLE})",
        )


def run(options: argparse.Namespace) -> int:
    """Sends the order; the exit code is 0 when it was carried out, 1 when not."""
    try:
        answer = _send(options)
    except HotdeltaError as error:
        print(f"hotdelta: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    follows = " and follows again" if options.command == "resume" else ""
    print(f"{options.command}: {options.url} serves {answer.get('position') or 'nothing yet'}{follows}")
    if answer.get("survives_restart") is False:
        print(f"hotdelta: {_FORGOTTEN}", file=sys.stderr)
    return 0


def _add_position(command: argparse.ArgumentParser, help_text: str, *, is_required: bool) -> None:
    command.add_argument(
        "position", metavar="POSITION", nargs=None if is_required else "?", type=_position, help=help_text
    )


def _position(text: str) -> str:
    # Here, because numpy comes with it, and every command has this parser.
    from hotdelta.chain import Position

    try:
        return str(Position.parse(text))
    except HotdeltaError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _send(options: argparse.Namespace) -> Mapping[str, Any]:
    """What the server says of an order that it carried out. Raises RequestError, ConfigurationError."""
    # Only these commands need it: `hotdelta chain` starts in a third of the time without.
    import httpx

    order = _order(options)
    headers = {"Authorization": f"Bearer {_token(options.token_file)}"}
    try:
        answer = httpx.post(
            f"{options.url.rstrip('/')}{_PATHS[options.command]}",
            json=order,
            headers=headers,
            timeout=TIMEOUT_SECONDS,
        )
        document = answer.json()
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigurationError(
            f"{options.url!r} is no address", hint="write http://HOST:PORT, as the server prints it"
        ) from error
    except httpx.TimeoutException as error:
        raise RequestError(
            f"{options.url} does not answer", hint="GET /model/version says whether the order was carried out"
        ) from error
    except httpx.HTTPError as error:
        raise RequestError(
            f"{options.url} cannot be asked: {error}", hint="is a server running there?"
        ) from error
    except ValueError as error:
        raise _foreign(options.url) from error
    if not isinstance(document, dict):
        raise _foreign(options.url)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise RequestError(
            f"{options.url} does not know this token",
            hint=f"give one of the server's --admin-token-file with --token-file or {TOKEN_VARIABLE}",
        )
    if answer.status_code != httpx.codes.OK:
        raise RequestError(f"{options.url} refuses: {document.get('error')}")
    return document


def _foreign(url: str) -> ConfigurationError:
    return ConfigurationError(
        f"what answers at {url} is no server of hotdelta", hint="write http://HOST:PORT, without a path"
    )


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

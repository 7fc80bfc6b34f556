"""Orders for a running server and its models: rollback, pin, resume, release, label, reload.

They need a token of its --admin-token-file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from hotdelta.cli.output import print_json, warn
from hotdelta.cli.servers.access import ADMIN_TOKEN_VARIABLE, access_for_orders
from hotdelta.cli.servers.http import ServerHttp, path_of, require_ok
from hotdelta.errors import ConfigurationError, RequestError

TIMEOUT_SECONDS = 150.0

_FORGOTTEN = (
    "a restart of the server forgets this order and goes back to its own settings. "
    "start the server with --state-dir, and without --pin, to keep orders"
)
_VERBS = {"rollback": "rollback", "pin": "pin", "resume": "resume", "release": "quarantine/release"}
# What an order may say in its body, and options call so.
_MEMBERS = ("position", "deltas", "to_model")


def run(options: argparse.Namespace) -> int:
    """0 when the order was carried out."""
    answer = _send(options)
    if options.is_json:
        print_json(answer)
    else:
        print(f"{options.command}: {_outcome(options, answer)}")
    if answer.get("survives_restart") is False:
        warn(_FORGOTTEN)
    return 0


def _outcome(options: argparse.Namespace, answer: Mapping[str, Any]) -> str:
    match options.command:
        case "label":
            return f"{options.label} is at {answer.get('model')} now, and was at {answer.get('before') or 'none'}"
        case "reload":
            added, removed = (", ".join(answer.get(name) or ["none"]) for name in ("added", "removed"))
            return f"models added: {added}; removed: {removed}"
        case "resume":
            return f"{options.url} serves {answer.get('position') or 'nothing yet'} and follows again"
        case _:
            return f"{options.url} serves {answer.get('position') or 'nothing yet'}"


def _path(options: argparse.Namespace) -> str:
    if options.command == "label":
        return f"/labels/{quote(options.label, safe='')}"
    return (
        "/models/reload" if options.command == "reload" else path_of(options.model, _VERBS[options.command])
    )


def _send(options: argparse.Namespace) -> Mapping[str, Any]:
    """What the server says of an order that it carried out. Raises RequestError, ConfigurationError."""
    order, access = _order(options), access_for_orders(options)
    with ServerHttp(options.url, timeout_seconds=TIMEOUT_SECONDS, access=access) as server:
        answer = server.post(
            _path(options),
            order,
            if_silent="GET /model/version says whether the order was carried out",
        )
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise RequestError(
            f"{options.url} does not know this token",
            hint=f"give one of the server's --admin-token-file with --token-file or {ADMIN_TOKEN_VARIABLE}",
        )
    return require_ok(answer, options.url)


def _order(options: argparse.Namespace) -> dict[str, Any]:
    given: Mapping[str, Any] = vars(options)
    order = {name.removeprefix("to_"): given[name] for name in _MEMBERS if given.get(name) is not None}
    if options.command == "rollback" and len(order) != 1:
        raise ConfigurationError("say how far to go back", hint="give a position, or --deltas N")
    return order

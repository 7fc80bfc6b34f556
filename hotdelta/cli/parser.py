"""Every command of `hotdelta` and its arguments. Imports nothing that takes time: --help needs no more."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

_EPILOG = """\
examples:
  # what a trainer has committed, newest first, with its forks; and what a running server serves of it
  hotdelta log run
  hotdelta log http://127.0.0.1:8000

  # one commit: its parent, its files, and how many rows of each table changed
  hotdelta show run 3.17

  # what differs between two positions, and in which deltas one key changed
  hotdelta diff run 3.16 3.17
  hotdelta key run users 8812

  # is every file what its manifest says, and can a server get to the newest position?
  hotdelta verify run

  # one full in place of thousands of deltas, when no trainer runs
  hotdelta compact run --keep-fulls 2

  # a chain into a store, and from there to another machine
  hotdelta copy run s3://models/run
  hotdelta copy s3://models/run run

  # what keeps it from working?
  hotdelta doctor run

  # the lag of each update as it comes
  hotdelta tail http://127.0.0.1:8000

  # do all replicas serve the same?
  hotdelta fleet http://10.0.0.1:8000 http://10.0.0.2:8000

  # take all servers that follow a store to a position, and let them go on later
  hotdelta order s3://bucket/run pin 3.17
  hotdelta order s3://bucket/run resume

  # take a server back by one update, and let it go on later (HOTDELTA_ADMIN_TOKEN holds its token)
  hotdelta rollback http://127.0.0.1:8000 --deltas 1
  hotdelta resume http://127.0.0.1:8000

A position is run.seq: the seq-th commit of the run-th start of a trainer. A full and the delta that closes it share
one. Deltas name their parent; a server that is at the parent follows by applying the delta.
Exit codes: 0 in order, 1 something is damaged, missing or refused (it is named), 2 wrong usage, 130 stopped by Ctrl-C.
"""

_ORDERS = {
    "rollback": "take a running server back to an earlier position, where it stays",
    "pin": "keep a running server at a position, or where it is",
    "resume": "let a server that was rolled back or pinned follow again",
    "release": "let a server take a quarantined update whatever its values are",
}

_FOR_ORDERS = "holds the token (default: the variable HOTDELTA_ADMIN_TOKEN)"
_FOR_READING = "holds the token of a server that asks for one (default: the variable HOTDELTA_TOKEN)"
_MOST_SECONDS = 3600.0

_Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no other name for what add_subparsers returns


def make_parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """`kind`: what it and the parsers of its commands are, for who wants to know of each argument."""
    parser = kind(
        prog="hotdelta",
        description="Look at the chain that a trainer writes, and at servers that follow it; give these orders.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        _add_log,
        _add_show,
        _add_diff,
        _add_key,
        _add_verify,
        _add_compact,
        _add_copy,
        _add_chain,
        _add_describe,
    ):
        add(commands)
    _add_doctor(commands)
    _add_tail(commands)
    _add_fleet(commands)
    for name, help_text in _ORDERS.items():
        _add_order(commands, name, help_text)
    _add_order_to_fleet(commands)
    _add_label(commands)
    _add_reload(commands)
    _add_completion(commands)
    return parser


def _add_log(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "log",
        "the history of a chain, newest first: position, age, rows, bytes, state, forks; or that of a running server",
    )
    command.add_argument(
        "place",
        metavar="DIR|URL",
        help="the checkpoint directory of a trainer, where it publishes to (s3://bucket/run), or a server, for example "
        "http://127.0.0.1:8000",
    )
    command.add_argument(
        "-n", "--limit", type=_at_least(1), metavar="N", help="only the newest N positions (default: all)"
    )
    _add_access(command, _FOR_READING)
    _add_model(command)
    _add_json(command)


def _add_show(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(commands, "show", "one commit: parent, children, state, schema, tables and files")
    _add_chain_place(command)
    command.add_argument(
        "position", metavar="POSITION", nargs="?", help="for example 3.17 (default: the newest)"
    )
    _add_json(command)


def _add_diff(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "diff",
        "what differs between two positions: rows by table, largest changes, keys come and gone",
    )
    _add_chain_place(command)
    command.add_argument("first", metavar="A", help="a position, for example 3.16")
    command.add_argument("second", metavar="B", nargs="?", help="another one (default: the newest)")
    command.add_argument("--table", metavar="KEY", help="only this table")
    command.add_argument(
        "--top",
        type=_at_least(0),
        default=5,
        metavar="N",
        help="the N largest changes of each table (default: 5)",
    )
    command.add_argument(
        "--all",
        action="store_true",
        dest="is_all",
        help="also what only a trainer needs: optimizer slots and their like",
    )
    _add_json(command)


def _add_key(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "key",
        "the life of one key, or of one row: when it came, in which deltas it changed, when it went",
    )
    _add_chain_place(command)
    command.add_argument(
        "table", metavar="TABLE", help="a table, as `describe` lists it, or what its name begins with"
    )
    command.add_argument(
        "key",
        metavar="KEY",
        help="of a table with keys a number or a text; of any other the number of a row. A key that begins with a dash "
        "comes after `--`",
    )
    command.add_argument(
        "--text", action="store_true", dest="is_text", help="KEY is a text, also when it looks like a number"
    )
    _add_json(command)


def _add_verify(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands, "verify", "check the digest of every file, and whether the newest position can be reached"
    )
    _add_chain_place(command)
    _add_json(command)


def _add_compact(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "compact",
        "put a full and the deltas after it together into a new full; in a directory, where no trainer runs",
    )
    _add_chain_place(command)
    command.add_argument(
        "position", metavar="POSITION", nargs="?", help="of which position (default: the newest)"
    )
    command.add_argument(
        "--keep-fulls",
        type=_at_least(1),
        metavar="N",
        help="then delete what the newest N fulls do not need (default: delete nothing); not in a store",
    )
    _add_json(command)


def _add_copy(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "copy",
        "a chain to another directory or store: verified, and resumed where it was interrupted",
    )
    command.add_argument(
        "source", metavar="A", help="a checkpoint directory, or an address (s3://bucket/run)"
    )
    command.add_argument(
        "target", metavar="B", help="another one, which may be empty, or be such a copy already"
    )
    command.add_argument(
        "--delete",
        action="store_true",
        dest="is_deleting",
        help="then delete from B what A does not have (default: delete nothing); not in a store",
    )
    _add_json(command)


def _add_chain(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "chain",
        "list every full and delta, newest last: kind, position, parent, step, rows, bytes, age",
    )
    _add_chain_place(command)


def _add_describe(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "describe",
        "list the variables at the newest position with their class, shape, dtype and bytes",
    )
    _add_directory(command)


def _add_doctor(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "doctor",
        "what keeps this machine and a directory, a store or a running server from working, and what to do",
    )
    command.add_argument(
        "place",
        metavar="DIR|URL",
        help="the checkpoint directory of a trainer, here or in a store (s3://bucket/run), or a server",
    )
    command.add_argument(
        "--write",
        action="store_true",
        dest="is_writing",
        help="also try in DIR what a trainer does, in a directory that is removed again: fsync, hard links, locks",
    )
    _add_access(command, _FOR_READING)
    _add_model(command)
    _add_json(command)


def _add_tail(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "tail",
        "the updates of a running server as they come, with every stage of their lag in milliseconds",
    )
    _add_url(command)
    command.add_argument(
        "--interval",
        type=_seconds,
        default=0.5,
        metavar="SECONDS",
        help="how often it is asked (default: 0.5)",
    )
    command.add_argument(
        "-n", "--updates", type=_at_least(1), metavar="N", help="end after N updates (default: at Ctrl-C)"
    )
    _add_access(command, _FOR_READING)
    _add_model(command)
    _add_json(command, "a JSON document for each update, in a line of its own")


def _add_fleet(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands, "fleet", "several servers beside each other: who serves what, who is behind, who differs"
    )
    command.add_argument(
        "urls",
        metavar="URL",
        nargs="+",
        help="servers, for example http://10.0.0.1:8000 http://10.0.0.2:8000",
    )
    command.add_argument(
        "--late-after",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="who is further behind is late, which is not in order (default: 60)",
    )
    _add_access(command, _FOR_READING)
    _add_model(command)
    _add_json(command)


def _add_order(commands: _Commands[argparse.ArgumentParser], name: str, help_text: str) -> None:
    command = _add(commands, name, help_text)
    _add_url(command)
    if name in ("rollback", "release"):
        _add_ordered_position(command, "to which position, for example 3.17", is_required=name == "release")
    if name == "pin":
        _add_ordered_position(
            command, "at which position (default: the one that is served)", is_required=False
        )
    if name == "rollback":
        command.add_argument("--deltas", type=_at_least(1), metavar="N", help="by how many updates instead")
    _add_access(command, _FOR_ORDERS)
    _add_model(command)
    _add_json(command)


def _add_ordered_position(command: argparse.ArgumentParser, help_text: str, *, is_required: bool) -> None:
    command.add_argument(
        "position", metavar="POSITION", nargs=None if is_required else "?", type=_position, help=help_text
    )


def _position(text: str) -> str:
    # Here, because numpy comes with it, and every command has this parser.
    from hotdelta.chain import Position
    from hotdelta.errors import HotdeltaError

    try:
        return str(Position.parse(text))
    except HotdeltaError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_order_to_fleet(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands,
        "order",
        "what all servers that follow a store are told; or tell them: pin POSITION, or resume",
    )
    command.add_argument("store", metavar="STORE", help="for example s3://bucket/run")
    command.add_argument(
        "verb",
        metavar="VERB",
        nargs="?",
        choices=("pin", "resume"),
        help="pin: go to a position and stay there; resume: follow again (default: show the orders)",
    )
    _add_ordered_position(command, "for pin (default: the newest in the store)", is_required=False)
    command.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="holds the key that signs orders (default: the file that HOTDELTA_ORDERS_KEY_FILE names)",
    )
    command.add_argument(
        "--by", dest="given_by", metavar="NAME", help="who gives the order (default: the name of the user)"
    )
    _add_json(command)


def _add_label(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(
        commands, "label", "let the clients who use a label ask another model, from one request to the next"
    )
    _add_url(command)
    command.add_argument("label", metavar="LABEL", help="the name that clients use")
    command.add_argument("to_model", metavar="MODEL", help="the model that it is to be at")
    _add_access(command, _FOR_ORDERS)
    _add_json(command)


def _add_reload(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(commands, "reload", "let a server read its file of models again, and become what it says")
    _add_url(command)
    _add_access(command, _FOR_ORDERS)
    _add_json(command)


def _add_completion(commands: _Commands[argparse.ArgumentParser]) -> None:
    command = _add(commands, "completion", "print the script that completes this command in a shell")
    command.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def _add(commands: _Commands[argparse.ArgumentParser], name: str, help_text: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=help_text,
        description=f"{help_text[0].upper()}{help_text[1:]}.",
        allow_abbrev=False,
    )


def _add_directory(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", metavar="DIR", help="the checkpoint directory of the trainer")


def _add_chain_place(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "directory",
        metavar="DIR|URL",
        help="the checkpoint directory of the trainer, or where it publishes to (s3://bucket/run)",
    )


def _add_url(command: argparse.ArgumentParser) -> None:
    command.add_argument("url", metavar="URL", help="the server, for example http://127.0.0.1:8000")


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model", metavar="NAME", help="of a server with several: which model, by its name or a label"
    )


def _add_access(command: argparse.ArgumentParser, token: str) -> None:
    """How a server is reached that does not let everybody in."""
    command.add_argument("--token-file", type=Path, metavar="FILE", help=token)
    command.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="PEM: whom to trust with https (default: as the system does)",
    )
    command.add_argument(
        "--client-cert", type=Path, metavar="FILE", help="PEM: the certificate to show, for mutual TLS"
    )
    command.add_argument(
        "--client-key", type=Path, metavar="FILE", help="PEM: its key, when that is in another file"
    )


def _add_json(
    command: argparse.ArgumentParser, help_text: str = "one JSON document for scripts instead of text"
) -> None:
    command.add_argument("--json", action="store_true", dest="is_json", help=help_text)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 and less than {_MOST_SECONDS:.0f}")
    return value

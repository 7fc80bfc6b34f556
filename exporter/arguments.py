"""What the command `exporter` can be told, and what is no use telling it."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from hotdelta.chain.format.position import Position
from hotdelta.errors import ConfigurationError, ManifestError
from hotdelta.given_directory import to_directory
from hotdelta.remote.stores.address import Address, is_address
from hotdelta.signatures import MAX_EXPORT_VERSION

_ARGUMENT = re.compile(r"`(?P<name>\w+)(?:=(?P<value>[^`]*))?`")
_RENAMED = {"allow_whole_table_reads": "allow_whole_table_read", "signatures": "signature"}

_EPILOG = """\
examples:
  # the newest state, as a SavedModel that can load full checkpoints
  exporter --checkpoint-dir run --export-dir export

  # the same, and it can take every later delta without a reload: this is what `server` wants
  exporter --checkpoint-dir run --export-dir export --save-incr-model

  # an earlier state (run.seq, as the trainer logs it), under a version number of your own
  exporter --checkpoint-dir run --export-dir export --save-incr-model --position 3.17 --version 20

  # from the store that the trainer publishes to, and into it
  exporter --checkpoint-dir s3://bucket/run --export-dir s3://bucket/exports --save-incr-model

  # started together with the trainer: wait for its first checkpoint
  exporter --checkpoint-dir run --export-dir export --save-incr-model --wait 120

Export once for each change of the model's graph, not for each checkpoint: the deltas carry the values.
The path of the new version is printed to standard output, progress to standard error.
Exit codes: 0 exported, 1 it could not be done, or its path not be printed (the reason is on standard error), 2 wrong
usage, 128 and more stopped by a signal: then nothing half written is left.
"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="exporter",
        description="Turn what a trainer leaves in its checkpoint directory into a SavedModel to serve.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=_place,
        required=True,
        metavar="DIR",
        help="the directory that the trainer writes to, or the address of its store",
    )
    parser.add_argument(
        "--export-dir",
        type=_place,
        required=True,
        metavar="DIR",
        help="gets a new directory named by version number; may be the address of a store",
    )
    parser.add_argument(
        "--save-incr-model", action="store_true", help="the export can take deltas, not only full checkpoints"
    )
    parser.add_argument(
        "--position",
        type=_position,
        metavar="RUN.SEQ",
        help="export this state (default: the newest valid one)",
    )
    parser.add_argument(
        "--version",
        type=_version,
        metavar="N",
        help="version number of the export (default: the next free one)",
    )
    parser.add_argument(
        "--signature",
        action="append",
        default=[],
        metavar="NAME",
        help="keep only these signatures (default: all)",
    )
    parser.add_argument(
        "--allow-whole-table-read",
        action="append",
        default=[],
        metavar="KEY",
        help="a table that predictions may read whole (slow once rows were updated); may be repeated",
    )
    parser.add_argument(
        "--model-name", metavar="NAME", help="name in answers and logs (default: that of --export-dir)"
    )
    parser.add_argument(
        "--import",
        dest="imports",
        type=_module,
        action="append",
        default=[],
        metavar="MODULE",
        help="import this module first, when the model uses operations that it registers; may be repeated",
    )
    parser.add_argument(
        "--wait", type=_seconds, default=0.0, metavar="SECONDS", help="wait this long for a first checkpoint"
    )
    parser.add_argument("--verbose", action="store_true", help="TensorFlow's own messages too")
    return parser


def in_flags(text: str) -> str:
    """A message as the command says it: errors name the arguments of export_saved_model, in backticks."""
    return _ARGUMENT.sub(_flag, text)


def _flag(argument: re.Match[str]) -> str:
    flag = f"--{_RENAMED.get(argument['name'], argument['name']).replace('_', '-')}"
    given = (argument["value"] or "").strip("[]'\"")
    return flag if given in ("", "True") else f"{flag} {given}"


def _place(text: str) -> Path | str:
    """A directory, or the address of a store."""
    if not is_address(text):
        return _directory(text)
    try:
        return str(Address.parse(text))
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _directory(text: str) -> Path:
    """Path("") would be this directory: what a shell makes of a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; write . for this directory")
    try:
        return to_directory(text, "the directory")
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _module(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a module, as in an import statement")
    return text


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except ManifestError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MAX_EXPORT_VERSION):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MAX_EXPORT_VERSION}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from error
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0")
    return seconds

"""The command `exporter`: from a trainer's checkpoint directory to a SavedModel, without the training script."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hotdelta.chain.position import Position
from hotdelta.chain.scan import Scanner
from hotdelta.errors import ConfigurationError, HotdeltaError, ManifestError

EXIT_FAILED = 1
_POLL_SECONDS = 0.5

_EPILOG = """\
examples:
  # the newest state, as a SavedModel that can load full checkpoints
  exporter --checkpoint-dir run --export-dir export

  # the same, and it can take every later delta without a reload: this is what `server` wants
  exporter --checkpoint-dir run --export-dir export --save-incr-model

  # an earlier state (run.seq, as the trainer logs it), under a version number of your own
  exporter --checkpoint-dir run --export-dir export --save-incr-model --position 3.17 --version 20

  # started together with the trainer: wait for its first checkpoint
  exporter --checkpoint-dir run --export-dir export --save-incr-model --wait 120

Export once for each change of the model's graph, not for each checkpoint: the deltas carry the values.
The path of the new version is printed to standard output, progress to standard error.
Exit codes: 0 exported, 1 it could not be done (the reason is on standard error), 2 wrong usage.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    _log_to_stderr(is_verbose=options.verbose)
    try:
        _wait_for_checkpoint(options.checkpoint_dir, options.wait, stop=threading.Event())
        path = _export(options)
    except HotdeltaError as error:
        print(f"exporter: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(f"exporter: {error.filename or options.export_dir}: {error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED
    print(path)
    return 0


def _export(options: argparse.Namespace) -> Path:
    for module in options.imports:
        _import(module)
    from exporter.export import export_saved_model

    return export_saved_model(
        options.checkpoint_dir,
        options.export_dir,
        save_incr_model=options.save_incr_model,
        position=options.position,
        version=options.version,
        signatures=options.signature or None,
        model_name=options.model_name,
        allow_whole_table_reads=options.allow_whole_table_read,
    )


def _import(module: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"--import {module}: {error}",
            hint="name it as in an import statement, from this directory or installed",
        ) from error


def _wait_for_checkpoint(
    checkpoint_dir: Path,
    wait_seconds: float,
    *,
    stop: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until the directory holds a commit, or the time is over: what is then missing is said by the export."""
    scanner = Scanner(checkpoint_dir)
    deadline = clock() + wait_seconds
    has_said = False
    while not scanner.scan().manifests and clock() < deadline:
        if not has_said:
            print(f"exporter: waiting for a checkpoint in {checkpoint_dir}", file=sys.stderr)
            has_said = True
        stop.wait(_POLL_SECONDS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="exporter",
        description="Turn what a trainer leaves in its checkpoint directory into a SavedModel to serve.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="the directory that the trainer writes to",
    )
    parser.add_argument(
        "--export-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="gets a new directory named by version number",
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


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except ManifestError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from error
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0")
    return seconds


def _log_to_stderr(*, is_verbose: bool) -> None:
    from hotdelta.logs import TextFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter())
    for name in ("exporter", "hotdelta"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO)
        # TensorFlow gives the root logger a handler of its own, which would say everything again.
        logging.getLogger(name).propagate = False
    if not is_verbose:
        # Read once, when TensorFlow is imported: it would otherwise greet with a page of CPU features.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        logging.getLogger("absl").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())

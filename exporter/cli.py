"""The command `exporter`: from a trainer's checkpoint directory to a SavedModel, without the training script."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from exporter.arguments import in_flags, make_parser
from exporter.stores import export_into_store, has_commits, refuse_nested_places
from exporter.version_directory import remove_unfinished
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import ConfigurationError, HotdeltaError
from hotdelta.quiet_import import quiet_import
from hotdelta.terminal import leave_terminal, progress_bars

EXIT_FAILED = 1
_POLL_SECONDS = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    _log_to_stderr(is_verbose=options.verbose)
    try:
        with _stopped_by_signals():
            refuse_nested_places(options.export_dir, options.checkpoint_dir)
            _wait_for_checkpoint(options.checkpoint_dir, options.wait, stop=threading.Event())
            with progress_bars():
                path = _export(options)
    except HotdeltaError as error:
        print(f"exporter: {in_flags(str(error))}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(f"exporter: {error.filename or options.export_dir}: {error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED
    return _print_path(path)


def _print_path(path: Path | str) -> int:
    try:
        if sys.stdout is None:
            raise ValueError("it is closed")
        print(path, flush=True)
    except (OSError, ValueError) as error:
        print(f"exporter: exported {path}, but cannot write so to standard output: {error}", file=sys.stderr)
        # Or Python would try again at its end, and complain by itself.
        sys.stdout = None
        return EXIT_FAILED
    return 0


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Stop at once at a signal, except at those that were ignored when the process started (nohup)."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _stop(number: int, _frame: FrameType | None) -> None:
    """At once. An exception would be lost in a destructor, of which TensorFlow runs many, and the export go on."""
    remove_unfinished()
    leave_terminal()
    # Not print: it may be in the middle of a line, and cannot be entered twice.
    with suppress(OSError):
        os.write(2, b"exporter: stopped; a version that is not complete is not published\n")
    os._exit(128 + number)


def _export(options: argparse.Namespace) -> Path | str:
    with nullcontext() if options.verbose else quiet_import():
        for module in options.imports:
            _import(module)
        from exporter.export import export_saved_model

    def export(export_dir: Path, version: int | None) -> Path:
        return export_saved_model(
            options.checkpoint_dir,
            export_dir,
            save_incr_model=options.save_incr_model,
            position=options.position,
            version=version,
            signatures=options.signature or None,
            model_name=options.model_name,
            allow_whole_table_reads=options.allow_whole_table_read,
        )

    if isinstance(options.export_dir, Path):
        return export(options.export_dir, options.version)
    return export_into_store(export, options.export_dir, options.version)


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
    checkpoint_dir: Path | str,
    wait_seconds: float,
    *,
    stop: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until the directory holds a commit, or the time is over: what is then missing is said by the export."""
    has_any = _look_into(checkpoint_dir)
    deadline = clock() + wait_seconds
    has_said = False
    while wait_seconds and not has_any() and clock() < deadline:
        if not has_said:
            print(f"exporter: waiting for a checkpoint in {checkpoint_dir}", file=sys.stderr)
            has_said = True
        stop.wait(_POLL_SECONDS)


def _look_into(checkpoint_dir: Path | str) -> Callable[[], bool]:
    """Whether there is a commit."""
    if isinstance(checkpoint_dir, str):
        return partial(has_commits, checkpoint_dir)
    scanner = Scanner(checkpoint_dir)
    return lambda: bool(scanner.scan().manifests)


class _ToStderr(logging.Handler):
    """Writes to what is standard error now: while there is a bar, that lets lines appear above it."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


def _log_to_stderr(*, is_verbose: bool) -> None:
    from hotdelta.logs import TextFormatter

    handler = _ToStderr()
    handler.setFormatter(TextFormatter())
    for name in ("exporter", "hotdelta"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO)
        # TensorFlow gives the root logger a handler of its own, which would say everything again.
        logging.getLogger(name).propagate = False
    if not is_verbose:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        logging.getLogger("absl").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())

"""The directories that callbacks of this process write to, each with how its callback is closed.

A new callback for a directory takes it over; what is still held when the process ends is closed then.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from hotdelta.errors import HotdeltaError
from hotdelta.logs import event

logger = logging.getLogger(__name__)

_close_by_directory: dict[Path, Callable[[], None]] = {}


def close_holder(run_dir: Path) -> None:
    close = _close_by_directory.get(run_dir.resolve())
    if close is not None:
        close()


def hold(run_dir: Path, close: Callable[[], None]) -> None:
    """`close` lets the directory go."""
    _close_by_directory[run_dir.resolve()] = close


def let_go(run_dir: Path) -> None:
    _close_by_directory.pop(run_dir.resolve(), None)


def _close_all() -> None:
    has_failed = False
    for close in list(_close_by_directory.values()):
        try:
            close()
        except HotdeltaError as error:
            event(logger, logging.ERROR, "the last save failed", reason=error)
            has_failed = True
    if has_failed:
        # Nothing else can change the exit status from here, and whoever started the process must learn of it.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


# An exception outside a training step ends fit without a word to its callbacks; at the end of the process the
# variables are still there to be saved.
atexit.register(_close_all)

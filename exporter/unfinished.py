"""Directories that are being written, so that they go however the export ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_directories: set[Path] = set()


@contextmanager
def unfinished(directory: Path) -> Iterator[Path]:
    """Gone when the block ends, unless it was renamed in it."""
    _directories.add(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        _directories.discard(directory)


def remove_unfinished() -> None:
    """For a process that leaves at once, without the ends of its blocks."""
    for directory in _directories:
        shutil.rmtree(directory, ignore_errors=True)

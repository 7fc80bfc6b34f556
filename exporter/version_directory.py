"""`export/<version>/` appears complete and at once, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotdelta.errors import ConfigurationError
from hotdelta.train.serving_files import publish_directory

_TEMPORARY_PREFIX = ".tmp-export-"
_LOCK_FILE = ".exporter.lock"


@contextmanager
def new_version(export_dir: Path, version: int | None) -> Iterator[tuple[Path, Path]]:
    """(temporary directory to write to, its final path). Published when the block ends without an error.

    One exporter at a time writes to an export directory, so what another one left behind is removed.
    Raises ConfigurationError when the version exists.
    """
    export_dir.mkdir(parents=True, exist_ok=True)
    with _locked(export_dir / _LOCK_FILE):
        for leftover in export_dir.glob(f"{_TEMPORARY_PREFIX}*"):
            shutil.rmtree(leftover)
        target = export_dir / str(_next_version(export_dir) if version is None else version)
        if target.exists():
            raise ConfigurationError(
                f"{target} exists already",
                hint="a version is never written again: leave --version out for the next",
            )
        temporary = export_dir / f"{_TEMPORARY_PREFIX}{target.name}"
        try:
            yield temporary, target
            publish_directory(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _next_version(export_dir: Path) -> int:
    versions = [
        int(path.name) for path in export_dir.iterdir() if path.name.isascii() and path.name.isdigit()
    ]
    return max(versions, default=0) + 1


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

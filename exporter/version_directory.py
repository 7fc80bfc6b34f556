"""`export/<version>/` appears complete and at once, or not at all."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hotdelta.chain.disk import Disk, publish_directory
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from hotdelta.signatures import MAX_EXPORT_VERSION

logger = logging.getLogger(__name__)

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


_TEMPORARY_PREFIX = ".tmp-export-"
_LOCK_FILE = ".exporter.lock"
_NAME_IS_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


@contextmanager
def new_version(export_dir: Path, version: int | None) -> Iterator[tuple[Path, Path]]:
    """(temporary directory to write to, its final path). Published when the block ends without an error.

    One exporter at a time writes to an export directory, so what another one left behind is removed.
    Raises ConfigurationError when the version exists, or is none that a server would look at.
    """
    if version is not None:
        _require_number(version)
    make_directory(export_dir)
    with _locked(export_dir / _LOCK_FILE):
        for leftover in export_dir.glob(f"{_TEMPORARY_PREFIX}*"):
            shutil.rmtree(leftover)
        target = export_dir / str(_next_version(export_dir) if version is None else version)
        if target.exists():
            raise _exists_already(target)
        with unfinished(temporary_for(target)) as temporary:
            yield temporary, target
            publish(temporary, target)
        with suppress(OSError):
            _warn_when_not_highest(target)


def temporary_for(target: Path) -> Path:
    """Beside it, so that it can be renamed; with a name that no server looks at."""
    return target.with_name(f"{_TEMPORARY_PREFIX}{target.name}")


def make_directory(export_dir: Path) -> None:
    """Raises ConfigurationError when a file is in the way, OSError when it cannot be made."""
    try:
        export_dir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"{export_dir} cannot be a directory: a file or a dangling link is in the way",
            hint="give another directory to export to",
        ) from error


def publish(temporary: Path, target: Path, *, disk: Disk | None = None) -> None:
    """Raises ConfigurationError when somebody else took the name meanwhile, OSError when it cannot be written."""
    try:
        publish_directory(temporary, target, disk=disk)
    except OSError as error:
        if error.errno in _NAME_IS_TAKEN and target.exists():
            raise _exists_already(target) from error
        raise


def _require_number(version: int) -> None:
    if type(version) is not int or not 0 < version <= MAX_EXPORT_VERSION:
        raise ConfigurationError(
            f"{version!r} is no version number", hint=f"give a whole number from 1 to {MAX_EXPORT_VERSION}"
        )


def _exists_already(target: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{target} exists already", hint="a version is never written again: leave `version` out for the next"
    )


def _next_version(export_dir: Path) -> int:
    version = _highest_version(export_dir) + 1
    _require_number(version)
    return version


def _highest_version(export_dir: Path) -> int:
    names = [path.name for path in export_dir.iterdir() if path.name.isascii() and path.name.isdigit()]
    return max((int(name) for name in names if int(name) <= MAX_EXPORT_VERSION), default=0)


def _warn_when_not_highest(target: Path) -> None:
    highest = _highest_version(target.parent)
    if int(target.name) < highest:
        event(
            logger,
            logging.WARNING,
            "servers prefer a higher version that is there",
            version=target.name,
            highest=highest,
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

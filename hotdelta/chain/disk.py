"""The only place where the chain writes to the operating system: one thin method per system call.

Tests subclass it to count calls, to fail or kill the process at the Nth, and to simulate a power loss. Nothing
here decides anything, and nothing here translates OSError: the callers do, once.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from hotdelta.logs import event

logger = logging.getLogger(__name__)

FILE_MODE = 0o644
# Larger writes into reserved space take ten times as long on some kernels (2 and 16 MB at once, ext4).
_WRITE_BYTES = 1024 * 1024


class Disk:
    """The real disk. Stateless, so that any number of threads may share one."""

    def create(self, path: Path) -> int:
        """Opens a new file for reading and writing; fails when the name exists."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)

    def reopen(self, path: Path) -> int:
        """Opens a file that is there, for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(fd, rest[:_WRITE_BYTES], offset)
            rest, offset = rest[written:], offset + written

    def allocate(self, fd: int, size: int) -> None:
        """Reserves the space, so that a full disk shows now and not in the middle of the rows."""
        try:
            if size:
                os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def sync_directory(self, path: Path) -> None:
        """Makes the names in a directory durable: an fsync of a file says nothing about its name."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def link(self, source: Path, target: Path) -> None:
        """Gives a file a second name; fails when the name exists, where a rename would overwrite."""
        target.hardlink_to(source)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)


def create_anew(disk: Disk, path: Path) -> int:
    """Opens a new temporary file; one that a failed save left behind makes way."""
    try:
        return disk.create(path)
    except FileExistsError:
        disk.unlink(path)
        return disk.create(path)


def write_durably(disk: Disk, path: Path, content: bytes) -> None:
    """Writes a temporary file and makes its bytes durable; its name becomes so with the directory."""
    fd = create_anew(disk, path)
    try:
        disk.write_at(fd, content, 0)
        disk.fsync(fd)
    finally:
        disk.close(fd)


def publish_directory(temporary: Path, target: Path, *, disk: Disk | None = None) -> None:
    """Make `temporary` durable and give it its name at once. Raises OSError, and then nothing was published."""
    disk = disk or Disk()
    for folder, _, file_names in os.walk(temporary):
        for name in file_names:
            sync_file(Path(folder, name))
        disk.sync_directory(Path(folder))
    disk.rename(temporary, target)
    try:
        # Not durable before its directory is: the rename is only a change of names in there.
        disk.sync_directory(target.parent)
    except OSError as error:
        # It is whole and readers may use it already, so it counts; all that a power failure can take is its name.
        event(logger, logging.WARNING, "published, but not yet durable", path=target, reason=error.strerror)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

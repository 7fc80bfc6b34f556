"""A store in a directory of this machine, or one that it has mounted: `file:///path`.

What is put is durable before the verb returns, as the local chain's commits are. Hard links make a name new: a file
system without them is refused.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hotdelta.chain.bundle.file_bytes import open_regular, read_plainly
from hotdelta.chain.disk import Disk
from hotdelta.chain.format.names import TEMPORARY_PREFIX
from hotdelta.errors import NameTakenError, ObjectMissingError, ObjectTooLargeError, StoreError
from hotdelta.remote.stores.contract import Entry

_COPY_BYTES = 8 * 1024 * 1024
# What a writer that was killed has left; nobody writes one file for so long.
_LEFTOVER_SECONDS = 24 * 3600.0
# Another's delete may take away an empty directory that a put has just made.
_TRIES = 8
_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
)
_HINTS = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "the quota is used up: free space there",
    errno.EACCES: "give this user permission to write there",
    errno.EPERM: "give this user permission to write there; the file system must support hard links",
    errno.ENOTSUP: "the file system must support hard links and fsync: use a local disk or NFS",
    errno.EROFS: "the file system is mounted read-only",
}


class DirectoryStore:
    """Keeps no state but where it is. Any number of threads and processes may share one."""

    def __init__(self, address: str, directory: Path, *, disk: Disk | None = None) -> None:
        self._address = address
        self._directory = directory
        self._disk = disk or Disk()
        self._remove_leftovers()

    @property
    def address(self) -> str:
        return self._address

    def put_new(self, name: str, content: bytes) -> None:
        with self._translated("put", name), self._temporary() as (temporary, descriptor):
            self._disk.write_at(descriptor, content, 0)
            self._disk.fsync(descriptor)
            try:
                self._publish(name, lambda target: self._disk.link(temporary, target))
            except FileExistsError as error:
                raise NameTakenError(f"{self._address} has an object {name} already") from error

    def put(self, name: str, content: bytes) -> None:
        with self._translated("put", name), self._temporary() as (temporary, descriptor):
            self._disk.write_at(descriptor, content, 0)
            self._disk.fsync(descriptor)
            self._publish(name, lambda target: self._disk.rename(temporary, target))

    def put_file(self, name: str, path: Path) -> None:
        source, size = open_regular(path)
        try:
            with self._translated("put", name), self._temporary() as (temporary, descriptor):
                self._disk.allocate(descriptor, size)
                for start in range(0, size, _COPY_BYTES):
                    self._disk.write_at(descriptor, os.pread(source, _COPY_BYTES, start), start)
                self._disk.fsync(descriptor)
                self._publish(name, lambda target: self._disk.rename(temporary, target))
        finally:
            os.close(source)

    def get(self, name: str, *, max_bytes: int) -> bytes:
        with self._translated("get", name):
            content = read_plainly(self._directory / name, max_bytes)
        if len(content) > max_bytes:
            raise ObjectTooLargeError(f"{name} of {self._address} has more than {max_bytes} bytes")
        return content

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        with self._translated("get", name):
            descriptor, size = open_regular(self._directory / name)
            try:
                return memoryview(os.pread(descriptor, max(0, min(length, size - start)), start))
            finally:
                os.close(descriptor)

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        found = []
        with self._translated("list", prefix):
            for folder, _, file_names in os.walk(self._directory / prefix, onerror=_raise_unless_gone):
                for file_name in file_names:
                    path = Path(folder, file_name)
                    name = path.relative_to(self._directory).as_posix()
                    if name > after and not file_name.startswith(TEMPORARY_PREFIX):
                        with suppress(FileNotFoundError):
                            found.append(Entry(name, path.stat().st_size))
        return iter(sorted(found))

    def delete(self, name: str) -> None:
        path = self._directory / name
        with self._translated("delete", name):
            try:
                self._disk.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                return
            self._disk.sync_directory(path.parent)
            for folder in path.parents[: name.count("/")]:
                try:
                    folder.rmdir()
                except OSError:
                    # Somebody else's file is in it.
                    break

    def when_put(self, name: str) -> float:
        """By the clock of the machine whose disk it is; see hotdelta.remote.stores.probe."""
        with self._translated("get", name):
            return (self._directory / name).stat().st_mtime

    def close(self) -> None:
        """Nothing is open."""

    def _publish(self, name: str, give_name: Callable[[Path], None]) -> None:
        target = self._directory / name
        for attempt in range(_TRIES):
            self._make_directory(target.parent)
            try:
                give_name(target)
                self._disk.sync_directory(target.parent)
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    def _make_directory(self, directory: Path) -> None:
        """The name of each new one is made durable too."""
        if directory.is_dir():
            return
        self._make_directory(directory.parent)
        self._disk.make_directory(directory)
        self._disk.sync_directory(directory.parent)

    @contextmanager
    def _temporary(self) -> Iterator[tuple[Path, int]]:
        """A new file beside all objects; it goes away unless it was given another name."""
        self._make_directory(self._directory)
        path = self._directory / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        descriptor = self._disk.create(path)
        try:
            yield path, descriptor
        finally:
            self._disk.close(descriptor)
            with suppress(FileNotFoundError):
                self._disk.unlink(path)

    @contextmanager
    def _translated(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if verb == "get" and error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise ObjectMissingError(f"{self._address} has no object {name}") from error
            raise StoreError(
                f"{self._address} could not {verb} {name}: {error.strerror or error}",
                retryable=error.errno not in _REFUSED,
                hint=_HINTS.get(error.errno or 0, ""),
            ) from error

    def _remove_leftovers(self) -> None:
        with suppress(OSError):
            for path in self._directory.glob(f"{TEMPORARY_PREFIX}*"):
                if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                    self._disk.unlink(path)


def _raise_unless_gone(error: OSError) -> None:
    """A listing that leaves out what it may not see would say that it is not there."""
    if not isinstance(error, FileNotFoundError):
        raise error

"""A store in HDFS: `hdfs://host:port/path`, or `hdfs:///path` for the file system that Hadoop's configuration names.

A file of HDFS is seen while it is written, so an object is written under a temporary name and then renamed, which HDFS
does at once and, unless it is told to replace, never onto a name that is taken. Kerberos, high availability and tokens
are the business of the library (hdfs-native, no Java), which reads HADOOP_CONF_DIR.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hdfs_native import Client, FileReader, FileWriter

from hotdelta.chain.bundle.file_bytes import open_regular
from hotdelta.chain.format.names import TEMPORARY_PREFIX
from hotdelta.errors import (
    ConfigurationError,
    NameTakenError,
    ObjectMissingError,
    ObjectTooLargeError,
    StoreError,
)
from hotdelta.remote.stores.address import Address
from hotdelta.remote.stores.contract import Entry

_PIECE_BYTES = 8 * 1024 * 1024
# What a writer that was killed has left; nobody writes one file for so long.
_LEFTOVER_SECONDS = 24 * 3600.0
# Another's delete may take away an empty directory that a put has just made.
_TRIES = 8
# The library's own would try for three minutes: those who call know better how long to wait.
_CONFIGURATION = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.max.millis": "2000",
}
_REFUSALS = ("AccessControlException", "permission denied", "SafeModeException", "not supported")


def open_hdfs(address: Address) -> HdfsStore:
    """Raises ConfigurationError when Hadoop's configuration does not say where that is, StoreError."""
    try:
        client = Client(f"hdfs://{address.place}" if address.place else None, _CONFIGURATION)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"{address} cannot be opened: {_first_line(error)}",
            hint="name the host (hdfs://host:port/path), or point HADOOP_CONF_DIR to Hadoop's configuration",
        ) from error
    return HdfsStore(str(address), client, f"/{address.path}".rstrip("/"))


class HdfsStore:
    """Keeps no state but where it is. Any number of threads and processes may share one."""

    def __init__(self, address: str, client: Client, root: str) -> None:
        self._address = address
        self._client = client
        self._root = root
        self._is_swept = False

    @property
    def address(self) -> str:
        return self._address

    def put_new(self, name: str, content: bytes) -> None:
        def give_name(temporary: str, target: str) -> None:
            try:
                self._client.rename(temporary, target, overwrite=False)
            except FileExistsError as error:
                raise NameTakenError(f"{self._address} has an object {name} already") from error

        self._put(name, lambda writer: writer.write(content), give_name)

    def put(self, name: str, content: bytes) -> None:
        self._put(name, lambda writer: writer.write(content), self._replace)

    def put_file(self, name: str, path: Path) -> None:
        source, size = open_regular(path)
        try:

            def write(writer: FileWriter) -> None:
                for start in range(0, size, _PIECE_BYTES):
                    writer.write(os.pread(source, _PIECE_BYTES, start))

            self._put(name, write, self._replace)
        finally:
            os.close(source)

    def get(self, name: str, *, max_bytes: int) -> bytes:
        with self._translated("get", name):
            reader = self._open(name)
            if len(reader) <= max_bytes:
                return reader.read_range(0, len(reader)) if len(reader) else b""
        raise ObjectTooLargeError(f"{name} of {self._address} has more than {max_bytes} bytes")

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        with self._translated("get", name):
            reader = self._open(name)
            length = max(0, min(length, len(reader) - start))
            return memoryview(reader.read_range(start, length) if length else b"")

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        found = []
        begin = len(self._root) + 1
        with self._translated("list", prefix), suppress(FileNotFoundError):
            for status in self._client.list_status(f"{self._root}/{prefix}".rstrip("/") or "/", True):
                name = status.path[begin:]
                if not status.isdir and name > after and not name.startswith(TEMPORARY_PREFIX):
                    found.append(Entry(name, status.length))
        return iter(sorted(found))

    def delete(self, name: str) -> None:
        with self._translated("delete", name):
            with suppress(FileNotFoundError):
                self._client.delete(self._path(name))
            self._delete_empty_directories(name)

    def when_put(self, name: str) -> float:
        """By the clock of the NameNode; see hotdelta.remote.stores.probe."""
        with self._translated("get", name):
            return self._client.get_file_info(self._path(name)).modification_time / 1000

    def close(self) -> None:
        """Connections go with the last reference."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _open(self, name: str) -> FileReader:
        return self._client.read(self._path(name))

    def _replace(self, temporary: str, target: str) -> None:
        self._client.rename(temporary, target, overwrite=True)

    def _put(
        self, name: str, write: Callable[[FileWriter], object], give_name: Callable[[str, str], None]
    ) -> None:
        with self._translated("put", name):
            self._sweep()
            temporary = self._path(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
            try:
                with self._client.create(temporary) as writer:
                    write(writer)
                self._publish(temporary, self._path(name), give_name)
            finally:
                with suppress(OSError, RuntimeError):
                    self._client.delete(temporary)

    def _publish(self, temporary: str, target: str, give_name: Callable[[str, str], None]) -> None:
        for attempt in range(_TRIES):
            try:
                self._client.mkdirs(target.rpartition("/")[0], create_parent=True)
                give_name(temporary, target)
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    def _delete_empty_directories(self, name: str) -> None:
        folder = name.rpartition("/")[0]
        while folder:
            try:
                self._client.delete(self._path(folder), recursive=False)
            except (OSError, RuntimeError):
                # Somebody else's file is in it.
                return
            folder = folder.rpartition("/")[0]

    def _sweep(self) -> None:
        """What writers that were killed have left, once."""
        if self._is_swept:
            return
        self._is_swept = True
        with suppress(OSError, RuntimeError):
            for status in list(self._client.list_status(self._root or "/", False)):
                age = time.time() - status.modification_time / 1000
                if status.path.rpartition("/")[2].startswith(TEMPORARY_PREFIX) and age > _LEFTOVER_SECONDS:
                    self._client.delete(status.path)

    @contextmanager
    def _translated(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if verb == "get":
                raise ObjectMissingError(f"{self._address} has no object {name}") from error
            raise self._failed(verb, name, error) from error
        except (OSError, RuntimeError, ValueError) as error:
            raise self._failed(verb, name, error) from error

    def _failed(self, verb: str, name: str, error: Exception) -> StoreError:
        reason = _first_line(error)
        is_refused = isinstance(error, PermissionError) or any(word in str(error) for word in _REFUSALS)
        return StoreError(
            f"{self._address} could not {verb} {name}: {reason}",
            retryable=not is_refused,
            hint="give this user the right to it (HADOOP_USER_NAME, Kerberos)"
            if is_refused
            else "is it up, can this machine reach its NameNode and DataNodes?",
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__

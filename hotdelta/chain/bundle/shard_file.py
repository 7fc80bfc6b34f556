"""One data file of a tensor bundle while it is written: rows go in, in any order, and checksums come out."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from hotdelta.chain.bundle.digest import CHUNK_BYTES, extend_crc32c, mask, read_chunks
from hotdelta.chain.bundle.row_memory import rows_within
from hotdelta.chain.disk import Disk, create_anew

ALIGNMENT_BYTES = 64

_WINDOW_BYTES = 1024 * 1024
_FEW_RUNS = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """Where in a data file one tensor lies, in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Checksums:
    """What a finished data file holds: its digest, and the masked CRC-32C of each tensor."""

    digest: str
    crc32c: Mapping[str, int]


class ShardFile:
    """A data file under its temporary name. One thread at a time.

    While tensors are written in the order of the layout, whole or from their first byte to their last, they are
    hashed on the way; any other write makes `finish` read the file once from the start.
    """

    def __init__(self, path: Path, extents: Mapping[str, Extent], disk: Disk, *, fd: int) -> None:
        """Of an open file: `create` makes a new one, `reopen` takes one that another process wrote."""
        self.path = path
        self.size = max((extent.end for extent in extents.values()), default=0)
        self._extents = dict(extents)
        self._disk = disk
        self._fd = fd
        self._is_open = True
        self._pending = list(extents)
        self._hash = _LayoutHash()
        self._is_streamed = True

    @classmethod
    def create(cls, path: Path, extents: Mapping[str, Extent], disk: Disk) -> Self:
        made = cls(path, extents, disk, fd=create_anew(disk, path))
        try:
            disk.allocate(made._fd, made.size)
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def reopen(cls, path: Path, extents: Mapping[str, Extent], disk: Disk) -> Self:
        """`extents` in the order of their offsets, and nothing between them."""
        return cls(path, extents, disk, fd=disk.reopen(path))

    def write_tensor(self, name: str, data: memoryview) -> None:
        self.write_part(name, data, 0)

    def write_part(self, name: str, data: memoryview, start: int) -> None:
        """Writes bytes of a tensor from `start`, counted from the tensor's first byte."""
        self._disk.write_at(self._fd, data, self._extents[name].offset + start)
        self._is_streamed = self._is_streamed and self._hash_next(name, data, start)

    def append_tensor(self, name: str, data: memoryview) -> Extent:
        """Writes one more tensor, behind all others."""
        extent = Extent(aligned_offset(self.size), len(data))
        self._extents[name] = extent
        self._pending.append(name)
        self.size = extent.end
        self.write_tensor(name, data)
        return extent

    def _hash_next(self, name: str, data: memoryview, start: int) -> bool:
        """Whether these bytes follow those that were hashed: then they are hashed too."""
        extent = self._extents[name]
        if not self._pending or self._pending[0] != name:
            return False
        if self._hash.name != name and start == 0:
            self._hash.begin(name, extent)
        if self._hash.name != name or self._hash.cursor != extent.offset + start:
            return False
        for first in range(0, len(data), CHUNK_BYTES):
            self._hash.extend(data[first : first + CHUNK_BYTES])
        if self._hash.cursor == extent.end:
            self._pending.pop(0)
        return True

    def patch_rows(self, name: str, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.uint8]) -> None:
        """Overwrites scattered rows; `ids` are sorted and unique, `rows` has the bytes of one row per line.

        Row by row would release the GIL 100,000 times, and a memory map would kill the process with SIGBUS
        where the disk fills up: so windows of the file with many rows are read, changed and written back.
        """
        self._is_streamed = False
        rows_per_window = rows_within(_WINDOW_BYTES, rows.shape[1])
        starts = np.flatnonzero(np.diff(ids // rows_per_window, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            self._patch_window(self._extents[name].offset, ids[start:end], rows[start:end])

    def _patch_window(self, offset: int, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.uint8]) -> None:
        row_bytes = rows.shape[1]
        breaks = np.flatnonzero(np.diff(ids) != 1) + 1
        if len(breaks) < _FEW_RUNS:
            for run_ids, run in zip(np.split(ids, breaks), np.split(rows, breaks), strict=True):
                self._disk.write_at(
                    self._fd, np.ascontiguousarray(run).reshape(-1).data, offset + int(run_ids[0]) * row_bytes
                )
            return
        first, count = int(ids[0]), int(ids[-1] - ids[0]) + 1
        start = offset + first * row_bytes
        window = np.frombuffer(bytearray(_read_exactly(self._fd, start, count * row_bytes)), np.uint8)
        window.reshape(count, row_bytes)[ids - first] = rows
        self._disk.write_at(self._fd, window.data, start)

    def finish(self) -> Checksums:
        """Makes the bytes durable and says what they are."""
        if not self._is_streamed or self._pending:
            self._hash = self._read_back()
        self._disk.fsync(self._fd)
        self.close()
        return Checksums(self._hash.digest(), self._hash.crc32c)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._disk.close(self._fd)

    def _read_back(self) -> _LayoutHash:
        result = _LayoutHash()
        for name, extent in self._extents.items():
            result.begin(name, extent)
            for chunk in read_chunks(self._fd, extent.offset, extent.end):
                result.extend(chunk)
            if result.cursor != extent.end:
                raise OSError(errno.EIO, "the file is shorter than what was written", str(self.path))
        return result


class _LayoutHash:
    """The checksums of a data file as its tensors pass by in the order of the layout."""

    def __init__(self) -> None:
        self.cursor = 0
        self.crc32c: dict[str, int] = {}
        self._hasher = blake3()
        self.name = ""
        self._crc = 0

    def begin(self, name: str, extent: Extent) -> None:
        self._hasher.update(bytes(extent.offset - self.cursor))
        self.cursor = extent.offset
        self.name, self._crc = name, 0
        self.crc32c[name] = mask(0)

    def extend(self, data: memoryview) -> None:
        self._hasher.update(data)
        self._crc = extend_crc32c(self._crc, data)
        self.crc32c[self.name] = mask(self._crc)
        self.cursor += len(data)

    def digest(self) -> str:
        return self._hasher.hexdigest()


def aligned_offset(end: int) -> int:
    """Where the next tensor begins."""
    return -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _read_exactly(fd: int, start: int, size: int) -> bytes:
    data = b"".join(bytes(chunk) for chunk in read_chunks(fd, start, start + size))
    if len(data) != size:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return data

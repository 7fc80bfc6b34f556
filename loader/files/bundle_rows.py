"""Reads rows of a tensor bundle into memory of our own."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta.chain import BundleEntry
from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.bundle.index import MAX_INDEX_BYTES, BundleIndex, parse_index
from hotdelta.chain.bundle.slice_key import row_slices
from hotdelta.chain.format import names
from hotdelta.chain.history.verification import open_plainly
from hotdelta.errors import DamagedError, ManifestError
from hotdelta.signature_calls import array_dtype
from loader.files.file_bytes import read_into

Array = npt.NDArray[Any]


class BundleRows:
    """An open bundle. Raises DamagedError for anything that cannot be read, and never waits for a pipe.

    One thread at a time.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._directory, self._prefix = prefix.parent, prefix.name
        index = self._read_index()
        self.entries, self._num_shards = index.entries, index.num_shards
        self._opened = contextlib.ExitStack()
        self._descriptors: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def shard_bytes(self, shard: int) -> int:
        """How large a data file is."""
        try:
            return os.fstat(self._open(shard)).st_size
        except OSError as error:
            raise _unreadable(self._path(shard), error) from error

    def read(self, name: str) -> Array:
        """A whole tensor, also one without axes."""
        entry = self._entry(name)
        return self._read(name, entry, 0, entry.size, entry.shape)

    def read_rows(self, name: str, start: int, stop: int, *, buffer: Array | None = None) -> Array:
        """Some rows, in `buffer` (bytes) when it is given and large enough: fresh memory costs more than reading."""
        entry = self._entry(name)
        row_bytes = tensor_bytes(entry.dtype, entry.shape[1:])
        shape = (stop - start, *entry.shape[1:])
        return self._read(name, entry, start * row_bytes, (stop - start) * row_bytes, shape, buffer)

    def _read(
        self,
        name: str,
        entry: BundleEntry,
        start: int,
        size: int,
        shape: tuple[int, ...],
        buffer: Array | None = None,
    ) -> Array:
        dtype = array_dtype(entry.dtype)
        if math.prod(shape) * dtype.itemsize != size:
            raise self._damaged(entry.shard, f"holds {name!r} as {size} bytes, not as {dtype}{list(shape)}")
        has_room = buffer is not None and len(buffer) >= size
        content = buffer[:size] if buffer is not None and has_room else np.empty(size, np.uint8)
        if entry.is_sliced:
            self._fill_from_slices(name, entry, start, content)
        else:
            self._fill(name, entry, start, content)
        return content.view(dtype).reshape(shape)

    def _fill_from_slices(self, name: str, entry: BundleEntry, start: int, content: Array) -> None:
        """Several processes wrote it, each some of its rows: only those that are asked for are read."""
        begin = 0
        for key in self._row_slices(name, entry):
            part = self._entry(key)
            first, end = max(start, begin), min(start + len(content), begin + part.size)
            if first < end:
                self._fill(key, part, first - begin, content[first - start : end - start])
            begin += part.size
        if start + len(content) > begin:
            raise self._damaged(entry.shard, f"ends before {name!r} does")

    def _row_slices(self, name: str, entry: BundleEntry) -> list[str]:
        try:
            return row_slices(name, entry)
        except ManifestError as error:
            raise self._damaged(entry.shard, f"cannot be used: {error}") from error

    def _fill(self, name: str, entry: BundleEntry, start: int, content: Array) -> None:
        try:
            is_whole = read_into(self._open(entry.shard), content, entry.offset + start)
        except OSError as error:
            raise _unreadable(self._path(entry.shard), error) from error
        if not is_whole:
            raise self._damaged(entry.shard, f"ends before {name!r} does")

    def _read_index(self) -> BundleIndex:
        path = self._directory / names.index_name(self._prefix)
        try:
            with os.fdopen(open_plainly(path), "rb") as file:
                content = file.read(MAX_INDEX_BYTES + 1)
        except OSError as error:
            raise _unreadable(path, error) from error
        return parse_index(content, path)

    def _open(self, shard: int) -> int:
        """Raises OSError."""
        if shard not in self._descriptors:
            descriptor = open_plainly(self._path(shard))
            self._opened.callback(os.close, descriptor)
            self._descriptors[shard] = descriptor
        return self._descriptors[shard]

    def _entry(self, name: str) -> BundleEntry:
        entry = self.entries.get(name)
        if entry is None:
            raise self._damaged(0, f"holds no {name!r}")
        return entry

    def _path(self, shard: int) -> Path:
        return self._directory / names.data_name(self._prefix, shard, self._num_shards)

    def _damaged(self, shard: int, reason: str) -> DamagedError:
        path = self._path(shard)
        return DamagedError(f"{path.name} {reason}", path=path, position="", retryable=True)


def _unreadable(path: Path, error: OSError) -> DamagedError:
    reason = f"{path.name} cannot be read: {error.strerror}"
    return DamagedError(reason, path=path, position="", retryable=True)

"""Reads tensor bundles, ours and TensorFlow's: into memory of our own, or, what nobody else writes to, through maps."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta.chain.bundle.digest import CHUNK_BYTES, extend_crc32c, mask
from hotdelta.chain.bundle.dtypes import has_fixed_size, stored_dtype, tensor_bytes
from hotdelta.chain.bundle.file_bytes import Bytes, aligned, open_plainly, read_into
from hotdelta.chain.bundle.index import BundleEntry, BundleIndex, read_index
from hotdelta.chain.bundle.slice_key import row_slices
from hotdelta.chain.format import names
from hotdelta.errors import DamagedError, HotdeltaError, ManifestError

Array = npt.NDArray[Any]


class StoredTensors(ABC):
    """The tensors of a bundle, wherever its bytes are. Raises DamagedError for all that is not as the index says."""

    def __init__(
        self, prefix: Path, index: BundleIndex, dtype_of: Callable[[str], np.dtype[Any]] = stored_dtype
    ) -> None:
        """`dtype_of`: that of the arrays; without it bfloat16 comes as uint16."""
        self.prefix = prefix
        self.num_shards = index.num_shards
        self.entries: Mapping[str, BundleEntry] = index.entries
        self._dtype_of = dtype_of
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files. Arrays that were handed out stay."""
        self._opened.close()

    def read(self, name: str) -> Array:
        """A whole tensor, also one without axes, in memory that TensorFlow can take as it is."""
        entry = self._readable(name)
        parts = [self._content(part) for part in self._parts(name, entry)]
        size = sum(len(part) for part in parts)
        joined = parts[0] if len(parts) == 1 else np.concatenate([aligned(0), *parts], out=aligned(size))
        return joined.view(self._dtype_of(entry.dtype)).reshape(entry.shape)

    @abstractmethod
    def shard_bytes(self, shard: int) -> int:
        """How large a data file is."""

    @abstractmethod
    def _content(self, part: BundleEntry) -> Bytes:
        """What lies in one place, as `aligned` memory."""

    @abstractmethod
    def _damaged(self, shard: int, reason: str, *, retryable: bool = False) -> DamagedError: ...

    def _parts(self, name: str, entry: BundleEntry) -> list[BundleEntry]:
        """Where the bytes of a tensor are: in one place, or in one for each slice of its rows, in their order."""
        parts = [entry]
        if entry.is_sliced:
            try:
                parts = [self._entry(key) for key in row_slices(name, entry)]
            except ManifestError as error:
                raise self._unfit(entry, str(error)) from error
        for part in parts:
            if part.size and part.offset + part.size > self.shard_bytes(part.shard):
                raise self._outside(name, part)
        size = sum(part.size for part in parts)
        if has_fixed_size(entry.dtype) and size != tensor_bytes(entry.dtype, entry.shape):
            wanted = f"{entry.dtype}{list(entry.shape)}"
            raise self._damaged(entry.shard, f"has {size} bytes of {name!r}, which is not {wanted}")
        return parts

    def _unfit(self, entry: BundleEntry, reason: str) -> HotdeltaError:
        """Nothing is damaged, but it is stored in a way that is not read here."""
        return self._damaged(entry.shard, f"cannot be used: {reason}")

    def _outside(self, name: str, part: BundleEntry) -> DamagedError:
        return self._damaged(part.shard, f"ends before tensor {name!r} does", retryable=True)

    def _readable(self, name: str) -> BundleEntry:
        entry = self._entry(name)
        if not has_fixed_size(entry.dtype):
            raise self._unfit(entry, f"tensor {name!r} is {entry.dtype}, which is not read here")
        return entry

    def _entry(self, name: str) -> BundleEntry:
        try:
            return self.entries[name]
        except KeyError:
            raise self._damaged(0, f"has no tensor {name!r}") from None


class BundleRows(StoredTensors):
    """An open bundle. Data files are opened when the first of their tensors is asked for, and never mapped.

    Never follows a link, nor waits for a pipe. One thread at a time.
    """

    def __init__(self, prefix: Path, *, dtype_of: Callable[[str], np.dtype[Any]] = stored_dtype) -> None:
        super().__init__(prefix, read_index(prefix.parent / names.index_name(prefix.name)), dtype_of)
        self._descriptors: dict[int, int] = {}

    def shard_bytes(self, shard: int) -> int:
        try:
            return os.fstat(self._open(shard)).st_size
        except OSError as error:
            raise self._unreadable(shard, error) from error

    def read_rows(self, name: str, start: int, stop: int, *, buffer: Bytes | None = None) -> Array:
        """Some rows, in `buffer` when it is given and large enough: fresh memory costs more than reading.

        Of a tensor that several processes wrote, each some of its rows, only those that are asked for are read.
        """
        entry = self._readable(name)
        row_bytes = tensor_bytes(entry.dtype, entry.shape[1:])
        begin, end = start * row_bytes, stop * row_bytes
        has_room = buffer is not None and len(buffer) >= end - begin
        content = buffer[: end - begin] if buffer is not None and has_room else aligned(end - begin)
        at = 0
        for part in self._parts(name, entry):
            first, last = max(begin, at), min(end, at + part.size)
            if first < last:
                self._fill(part.shard, part.offset + first - at, content[first - begin : last - begin])
            at += part.size
        return content.view(self._dtype_of(entry.dtype)).reshape(stop - start, *entry.shape[1:])

    def _content(self, part: BundleEntry) -> Bytes:
        memory = aligned(part.size)
        if part.size:
            self._fill(part.shard, part.offset, memory)
        return memory

    def _fill(self, shard: int, offset: int, memory: Bytes) -> None:
        try:
            is_whole = read_into(self._open(shard), memory, offset)
        except OSError as error:
            raise self._unreadable(shard, error) from error
        if not is_whole:
            raise self._damaged(shard, "became shorter while it was read", retryable=True)

    def _open(self, shard: int) -> int:
        """Raises OSError."""
        if shard not in self._descriptors:
            descriptor = open_plainly(self._data_path(shard))
            self._opened.callback(os.close, descriptor)
            self._descriptors[shard] = descriptor
        return self._descriptors[shard]

    def _data_path(self, shard: int) -> Path:
        return self.prefix.parent / names.data_name(self.prefix.name, shard, self.num_shards)

    def _unreadable(self, shard: int, error: OSError) -> DamagedError:
        return self._damaged(shard, f"cannot be read: {error.strerror}", retryable=True)

    def _damaged(self, shard: int, reason: str, *, retryable: bool = False) -> DamagedError:
        path = self._data_path(shard)
        return DamagedError(f"data file {path.name} {reason}", path=path, position="", retryable=retryable)


class BundleReader(BundleRows):
    """A bundle that nobody shortens meanwhile, because this process writes it: its tensors are mapped.

    Raises ManifestError for tensors that are stored in a way that is not read here.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        super().__init__(directory / prefix)
        self._maps: dict[int, Bytes] = {}

    def close(self) -> None:
        """Drops the memory maps; arrays that were handed out keep theirs."""
        super().close()
        self._maps.clear()

    def map(self, name: str) -> Array:
        """A tensor, read-only and not copied, except that slices of rows are put together."""
        entry = self._readable(name)
        parts = list(self._mapped(name, entry))
        joined = parts[0] if len(parts) == 1 else np.concatenate([aligned(0), *parts])
        joined.flags.writeable = False
        return joined.view(self._dtype_of(entry.dtype)).reshape(entry.shape)

    def check(self, name: str) -> None:
        """Compares the stored bytes of a tensor with its checksum."""
        entry = self._entry(name)
        for part, content in zip(self._parts(name, entry), self._mapped(name, entry), strict=True):
            crc = 0
            for start in range(0, len(content), CHUNK_BYTES):
                crc = extend_crc32c(crc, content.data[start : start + CHUNK_BYTES])
            if mask(crc) != part.crc32c:
                raise self._damaged(part.shard, f"does not fit the checksum of tensor {name!r}")

    def _unfit(self, _entry: BundleEntry, reason: str) -> HotdeltaError:
        return ManifestError(f"{self.prefix.name}: {reason}")

    def _mapped(self, name: str, entry: BundleEntry) -> Iterator[Bytes]:
        for part in self._parts(name, entry):
            data = self._map_shard(part.shard) if part.size else aligned(0)
            yield data[part.offset : part.offset + part.size] if part.size else data

    def _map_shard(self, shard: int) -> Bytes:
        if shard not in self._maps:
            try:
                self._maps[shard] = np.memmap(self._data_path(shard), np.uint8, "r")
            except OSError as error:
                raise self._unreadable(shard, error) from error
        return self._maps[shard]

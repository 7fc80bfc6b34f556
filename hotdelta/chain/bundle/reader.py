"""Reads tensor bundles, ours and TensorFlow's, through memory maps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta.chain.bundle.digest import CHUNK_BYTES, extend_crc32c, mask
from hotdelta.chain.bundle.dtypes import has_fixed_size, stored_dtype, tensor_bytes
from hotdelta.chain.bundle.index import BundleEntry, read_index
from hotdelta.chain.bundle.slice_key import row_slices
from hotdelta.chain.format import names
from hotdelta.errors import DamagedError, ManifestError


class BundleReader:
    """An open tensor bundle. Data files are opened when the first of their tensors is asked for.

    Raises DamagedError for anything that is not as the index says. One thread at a time.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix
        index = read_index(directory / names.index_name(prefix))
        self.num_shards = index.num_shards
        self.entries: Mapping[str, BundleEntry] = index.entries
        self._maps: dict[int, npt.NDArray[np.uint8]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drops the memory maps; arrays that were handed out keep theirs."""
        self._maps.clear()

    def map_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor, read-only and not copied, except that slices of rows are put together."""
        entry = self._entry(name)
        if entry.is_sliced:
            return self._join_slices(name, entry)
        if entry.size == 0:
            return _empty()
        data = self._map_shard(entry.shard)
        if entry.offset + entry.size > len(data):
            raise self._damaged(entry.shard, f"ends before tensor {name!r}", retryable=True)
        return data[entry.offset : entry.offset + entry.size]

    def map(self, name: str) -> npt.NDArray[Any]:
        """A tensor, read-only and not copied; bfloat16 comes as uint16."""
        entry = self._entry(name)
        if not has_fixed_size(entry.dtype):
            raise ManifestError(f"tensor {name!r} of {self._prefix} is {entry.dtype}, which is not read here")
        if not entry.is_sliced and tensor_bytes(entry.dtype, entry.shape) != entry.size:
            raise self._damaged(entry.shard, f"has {entry.size} bytes for tensor {name!r} of {entry.shape}")
        return self.map_bytes(name).view(stored_dtype(entry.dtype)).reshape(entry.shape)

    def _join_slices(self, name: str, entry: BundleEntry) -> npt.NDArray[np.uint8]:
        """The slices of a tensor that was stored in parts of whole rows, in the order of their rows."""
        joined = np.concatenate([self.map_bytes(key) for key in row_slices(name, entry)])
        if len(joined) != tensor_bytes(entry.dtype, entry.shape):
            raise self._damaged(entry.shard, f"does not hold all of tensor {name!r}")
        joined.flags.writeable = False
        return joined

    def read(self, name: str) -> npt.NDArray[Any]:
        """A copy of a tensor; bfloat16 comes as uint16."""
        return np.array(self.map(name))

    def check(self, name: str) -> None:
        """Compares the stored bytes of a tensor with its checksum."""
        data = self.map_bytes(name).data
        crc = 0
        for start in range(0, len(data), CHUNK_BYTES):
            crc = extend_crc32c(crc, data[start : start + CHUNK_BYTES])
        entry = self._entry(name)
        if not entry.is_sliced and mask(crc) != entry.crc32c:
            raise self._damaged(entry.shard, f"does not fit the checksum of tensor {name!r}")

    def _entry(self, name: str) -> BundleEntry:
        try:
            return self.entries[name]
        except KeyError:
            path = self._directory / names.index_name(self._prefix)
            raise DamagedError(f"{self._prefix} has no tensor {name!r}", path=path, position="") from None

    def _map_shard(self, shard: int) -> npt.NDArray[np.uint8]:
        if shard not in self._maps:
            path = self._data_path(shard)
            try:
                self._maps[shard] = np.memmap(path, np.uint8, "r") if path.stat().st_size else _empty()
            except OSError as error:
                raise self._damaged(shard, f"cannot be read: {error.strerror}", retryable=True) from error
        return self._maps[shard]

    def _data_path(self, shard: int) -> Path:
        return self._directory / names.data_name(self._prefix, shard, self.num_shards)

    def _damaged(self, shard: int, reason: str, *, retryable: bool = False) -> DamagedError:
        path = self._data_path(shard)
        return DamagedError(f"data file {path.name} {reason}", path=path, position="", retryable=retryable)


def _empty() -> npt.NDArray[np.uint8]:
    empty = np.empty(0, np.uint8)
    empty.flags.writeable = False
    return empty

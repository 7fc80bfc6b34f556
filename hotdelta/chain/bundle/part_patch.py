"""A part of a bundle that another process wrote, and rows that are written over it before it is merged.

What SaveV2 says of its checksums is not true any more after that: they are computed anew, in the one pass over the
file that its digest needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.bundle.index import BundleEntry, BundleIndex, encode_index, read_index
from hotdelta.chain.bundle.row_memory import byte_rows
from hotdelta.chain.bundle.shard_file import Extent, ShardFile
from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk, write_durably
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import FileRecord
from hotdelta.chain.write_failure import translated
from hotdelta.errors import CommitError, DamagedError


class PatchedPart:
    """The bundle that SaveV2 wrote, in whatever process, as `<directory>/.tmp-<prefix>`. One thread at a time."""

    def __init__(self, directory: Path, prefix: str, *, disk: Disk) -> None:
        """Raises CommitError when it is not there or not whole."""
        self._directory = directory
        self._prefix = prefix
        self._disk = disk
        self._data, self._index = names.data_name(prefix, 0, 1), names.index_name(prefix)
        self._entries = _entries(self._temporary(self._index))
        extents = {name: Extent(entry.offset, entry.size) for name, entry in self._entries.items()}
        with translated(f"opening {prefix}", directory):
            self._file = ShardFile.reopen(self._temporary(self._data), extents, disk)

    def patch_rows(self, name: str, ids: npt.NDArray[np.int64], rows: npt.NDArray[Any]) -> None:
        """Writes scattered rows over a tensor; `ids` are places in it, sorted and unique."""
        entry = self._entries[name]
        if rows.shape != (len(ids), *entry.shape[1:]) or ids[0] < 0 or ids[-1] >= entry.shape[0]:
            raise ValueError(f"rows {rows.shape} with {len(ids)} ids do not fit {name!r} of {entry.shape}")
        with translated(f"writing {self._prefix}", self._directory):
            self._file.patch_rows(name, ids, byte_rows(rows))

    def finish(self, role: str) -> PreparedBundle:
        """Makes it durable, with the checksums of what it holds now."""
        with translated(f"writing {self._prefix}", self._directory):
            checksums = self._file.finish()
            entries = {
                name: replace(entry, crc32c=checksums.crc32c[name]) for name, entry in self._entries.items()
            }
            content = encode_index(BundleIndex(1, entries))
            write_durably(self._disk, self._temporary(self._index), content)
        files = (
            FileRecord(self._data, self._file.size, checksums.digest, role),
            FileRecord(self._index, len(content), digest_bytes(content), names.ROLE_INDEX),
        )
        temporary_names = {file.name: self._temporary(file.name).name for file in files}
        return PreparedBundle(self._directory, self._prefix, files, temporary_names)

    def close(self) -> None:
        self._file.close()

    def _temporary(self, name: str) -> Path:
        return self._directory / f"{names.TEMPORARY_PREFIX}{name}"


def _entries(path: Path) -> Mapping[str, BundleEntry]:
    """In the order in which the tensors lie in the data file."""
    try:
        found = read_index(path).entries
    except DamagedError as error:
        raise CommitError(f"a part cannot be used: {error}", path=path) from error
    return dict(sorted(found.items(), key=lambda item: item[1].offset))

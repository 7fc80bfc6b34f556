"""Where the rows of a variable lie in the files of a resume point. Plain data; reads nothing but indexes and ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hotdelta.chain import names
from hotdelta.chain.bundle import BundleReader
from hotdelta.chain.manifest import FileRecord, Manifest
from hotdelta.chain.slice_key import row_slices
from hotdelta.chain.verification import directory_of
from hotdelta.train.row_values import Ids


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one variable that follow each other in a file: `size` bytes, from `offset` on.

    `ids` are the rows of the variable that they are, sorted.
    """

    path: Path
    file_bytes: int
    offset: int
    size: int
    ids: Ids

    def part(self, first: int, end: int) -> StoredRows:
        """Its rows from the `first`-th to before the `end`-th."""
        row_bytes, ids = self.size // len(self.ids), self.ids[first:end]
        return replace(self, offset=self.offset + first * row_bytes, size=len(ids) * row_bytes, ids=ids)

    def between(self, first_id: int, end_id: int) -> StoredRows:
        first, end = np.searchsorted(self.ids, [first_id, end_id])
        return self.part(int(first), int(end))


@dataclass(frozen=True, slots=True)
class RowLink:
    """One link of a chain that has rows of a variable, as its tensor `name`: those of `ids`, or all (None).

    `is_value`: as the value of a variable that was no table yet, or is none any more, with a leading axis of 1.
    """

    run_dir: Path
    manifest: Manifest
    reader: BundleReader
    name: str
    ids: Ids | None
    is_value: bool = False

    def stored(self) -> Iterator[StoredRows]:
        """Where its rows are: in one file, or in one for each server that wrote some of them."""
        entry, first = self.reader.entries[self.name], 0
        for key in row_slices(self.name, entry) if entry.is_sliced else [self.name]:
            part = self.reader.entries[key]
            end = first + part.shape[1 if self.is_value else 0]
            ids = np.arange(first, end) if self.ids is None else self.ids[first:end]
            if part.size:
                file = self._file(part.shard)
                path = directory_of(self.run_dir, self.manifest.kind).absolute() / file.name
                yield StoredRows(path, file.bytes, part.offset, part.size, ids)
            first = end

    def _file(self, shard: int) -> FileRecord:
        name = names.data_name(self.manifest.prefix, shard, self.reader.num_shards)
        return next(file for file in self.manifest.files if file.name == name)

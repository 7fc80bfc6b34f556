"""The rows of a full as parameter servers copy them to files of their own, with the cuts written over them.

Servers write their shards while training goes on, so a file is a blur; every cut that is taken meanwhile is written
over it (see full_builder), out of the files of its delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.part_patch import PatchedPart
from hotdelta.chain.bundle.parts import discard_parts, merge_parts
from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.train.model.variables import RowVariable
from hotdelta.train.rows.cut import RowBlock
from hotdelta.train.save.server_delta import rows_on_servers
from hotdelta.train.save.server_parts import RowsToWrite, ServerPart, joined_pieces, plan_parts, write_parts
from hotdelta.train.tables.row_values import Array, Ids
from hotdelta.train.tables.sharded import Shard


class ServerCopy:
    """What servers write of one full. `write`, then any number of patches, then `finish`. One thread at a time."""

    def __init__(self, directory: Path, stem: str, *, disk: Disk) -> None:
        self._directory = directory
        self._stem = stem
        self._disk = disk
        self._parts: list[ServerPart] = []
        self._files: list[PatchedPart] = []

    def write(self, rows: Iterable[RowsToWrite]) -> None:
        """Raises CommitError when a server is gone or cannot write."""
        self._parts = plan_parts(self._directory, self._stem, rows)
        write_parts(self._parts)
        for part in self._parts:
            self._files.append(PatchedPart(self._directory, part.prefix, disk=self._disk))

    def patch_rows(self, key: str, ids: Ids, rows: Array) -> None:
        """Writes rows of a cut over the copy, wherever they are in it; `ids` are sorted and unique."""
        for part, file in zip(self._parts, self._files, strict=True):
            for item in part.rows:
                begin, end = np.searchsorted(ids, [item.first, item.first + item.count])
                if item.name == key and end > begin:
                    file.patch_rows(item.part_name, ids[begin:end] - item.first, rows[begin:end])

    def patch_from_servers(self, blocks: Iterable[RowBlock]) -> None:
        """Rows of a cut that no delta holds: the servers write them to be read here, and then to be removed."""
        by_name = {block.variable.key + names.ROWS_SUFFIX: block for block in blocks}
        parts = plan_parts(self._directory, f"{self._stem}.cut", rows_on_servers(by_name.values()))
        write_parts(parts)
        for part in parts:
            with BundleReader(self._directory, f"{names.TEMPORARY_PREFIX}{part.prefix}") as reader:
                for item in part.rows:
                    block = by_name[item.name]
                    ids = block.ids[item.first : item.first + item.count]
                    self.patch_rows(block.variable.key, ids, reader.map(item.part_name))
        discard_parts(self._directory, f"{self._stem}.cut", disk=self._disk)

    def finish(self, own: PreparedBundle, prefix: str) -> PreparedBundle:
        """One bundle of what the servers wrote and of `own`. Reads every file once, for its checksums."""
        finished = [file.finish(part.role) for part, file in zip(self._parts, self._files, strict=True)]
        return merge_parts(prefix, [own, *finished], joined_pieces(self._parts), disk=self._disk)

    def discard(self) -> None:
        """Removes the files. Never raises OSError."""
        for file in self._files:
            file.close()
        discard_parts(self._directory, self._stem, disk=self._disk)


def shard_to_write(item: RowVariable, shard: Shard) -> RowsToWrite:
    return RowsToWrite(
        server=shard.variable.device,
        role=item.role,
        name=item.key,
        first=shard.first,
        count=shard.rows,
        nbytes=item.nbytes // max(1, item.rows) * shard.rows,
        read=_reading(shard),
    )


def _reading(shard: Shard) -> Callable[[], tf.Tensor]:
    return shard.variable.read_value  # type: ignore[no-any-return]

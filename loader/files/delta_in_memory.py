"""A delta in memory of our own: what is verified is what is staged, whoever may write to the directory meanwhile.

Every byte is read once. (RestoreV2 would read the files a second time and compute a second checksum, and the look at
the values would read them a third time.)
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hotdelta import signatures as contract
from hotdelta.chain import BundleEntry, FileRecord, Manifest, Schema, directory_of
from hotdelta.chain.bundle.digest import digest_pieces
from hotdelta.chain.bundle.file_bytes import Bytes, aligned, read_into
from hotdelta.chain.bundle.index import MAX_INDEX_BYTES, BundleIndex, parse_index
from hotdelta.chain.bundle.reader import StoredTensors
from hotdelta.chain.format import names
from hotdelta.chain.history.verification import open_listed, require_digest, unreadable
from hotdelta.errors import DamagedError
from hotdelta.signature_calls import array_dtype
from loader.files.fed_update import FedUpdate

Array = npt.NDArray[Any]

# What is not larger is read at once: a call for each tensor would take longer. TensorFlow copies what lies in it.
_WHOLE_BYTES = 64 * 1024


class DeltaFiles(StoredTensors):
    """The files of a delta that serving reads. Everything raises DamagedError.

    One thread opens it, reads and loads; after that nothing changes, and any thread may look.
    """

    def __init__(self, run_dir: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._directory = directory_of(run_dir, manifest.kind)
        self.prefix = self._directory / manifest.prefix
        records = {file.name: file for file in manifest.files if file.role == names.ROLE_SERVING}
        with contextlib.ExitStack() as opened:
            self._index = self._open_file(self._index_record(), opened)
            index = self._read_index()
            super().__init__(self.prefix, index, array_dtype)
            self._shards = {
                shard: self._open_file(records[name], opened)
                for shard in range(index.num_shards)
                if (name := names.data_name(manifest.prefix, shard, index.num_shards)) in records
            }
            self._opened = opened.pop_all()

    def shard_bytes(self, shard: int) -> int:
        """How large a data file is; 0 for one that serving does not read."""
        found = self._shards.get(shard)
        return found.record.bytes if found else 0

    def load(self) -> None:
        """Read all that was not read yet."""
        for shard, file in self._shards.items():
            places = {(entry.offset, entry.size) for entry in self.entries.values() if entry.shard == shard}
            end = 0
            for offset, size in sorted(place for place in places if place[1]):
                if offset < end:
                    raise self._wrong(f"two of its tensors lie at byte {offset} of data file {shard}")
                file.read(end, offset - end)
                file.read(offset, size)
                end = offset + size
            file.read(end, file.record.bytes - end)

    def require_digests(self) -> None:
        """That what was loaded is what the manifest lists. Hashing releases the GIL."""
        for file in (self._index, *self._shards.values()):
            require_digest(file.path, file.record, str(self.manifest.position), file.digest())

    def update(self, schema: Schema) -> FedUpdate:
        """The delta in the shape in which the signature stage_rows takes it."""
        tensors = [
            table.key + suffix for table in schema.tables for suffix in (names.IDS_SUFFIX, names.ROWS_SUFFIX)
        ]
        tensors += [other.key + names.VALUE_SUFFIX for other in schema.others]
        return {
            **{name: self.read(name) for name in tensors},
            contract.IDENTITY_VALUE: self.read(names.IDENTITY_TENSOR),
            contract.STEP_VALUE: self.read(names.STEP_TENSOR),
        }

    def _index_record(self) -> FileRecord:
        wanted = names.index_name(self.manifest.prefix)
        for file in self.manifest.files:
            if file.name == wanted and file.role == names.ROLE_INDEX:
                return file
        raise self._wrong("its manifest lists no index")

    def _read_index(self) -> BundleIndex:
        size = self._index.record.bytes
        if size > MAX_INDEX_BYTES:
            raise self._wrong(f"its index is larger than {MAX_INDEX_BYTES} bytes")
        return parse_index(self._index.read(0, size).tobytes(), self._index.path)

    def _open_file(self, record: FileRecord, opened: contextlib.ExitStack) -> _OpenFile:
        path, position = self._directory / record.name, str(self.manifest.position)
        descriptor = open_listed(path, record, position)
        opened.callback(os.close, descriptor)
        return _OpenFile(path, record, position, descriptor)

    def _content(self, part: BundleEntry) -> Bytes:
        return self._shards[part.shard].read(part.offset, part.size) if part.size else aligned(0)

    def _outside(self, name: str, part: BundleEntry) -> DamagedError:
        return self._damaged(part.shard, f"{name!r} is not in the files that serving reads")

    def _damaged(self, shard: int, reason: str, *, retryable: bool = False) -> DamagedError:
        return self._wrong(f"data file {shard}: {reason}", retryable=retryable)

    def _wrong(self, reason: str, *, retryable: bool = False) -> DamagedError:
        return DamagedError(
            f"delta {self.manifest.position}: {reason}",
            path=self.prefix,
            position=str(self.manifest.position),
            retryable=retryable,
            hint="wait for the next full",
        )


class _OpenFile:
    """One file and the pieces of it that were read, by their place."""

    def __init__(self, path: Path, record: FileRecord, position: str, descriptor: int) -> None:
        self.path = path
        self.record = record
        self._position = position
        self._descriptor = descriptor
        self._pieces: dict[int, Bytes] = {}

    def read(self, offset: int, size: int) -> Bytes:
        """Once from the file, later the same bytes again."""
        if not size:
            return aligned(0)
        if self.record.bytes <= _WHOLE_BYTES:
            if not self._pieces:
                self._pieces[0] = self._read(0, self.record.bytes)
            return self._pieces[0][offset : offset + size]
        piece = self._pieces.get(offset)
        if piece is None or len(piece) != size:
            piece = self._pieces[offset] = self._read(offset, size)
        return piece

    def digest(self) -> str:
        return digest_pieces(self._pieces[offset].data for offset in sorted(self._pieces))

    def _read(self, offset: int, size: int) -> Bytes:
        piece = aligned(size)
        try:
            is_whole = read_into(self._descriptor, piece, offset)
        except OSError as error:
            raise unreadable(self.path, self._position, error) from error
        if not is_whole:
            raise DamagedError(
                f"{self.path.name} of {self._position} became shorter while it was read",
                path=self.path,
                position=self._position,
                retryable=True,
            )
        return piece

"""A delta in memory of our own: what is verified is what is staged, whoever may write to the directory meanwhile.

Every byte is read once. (RestoreV2 would read the files a second time and compute a second checksum, and the look at
the values would read them a third time.)
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta import signatures as contract
from hotdelta.chain import BundleEntry, FileRecord, Manifest, Schema, directory_of
from hotdelta.chain.bundle.digest import digest_pieces
from hotdelta.chain.bundle.index import MAX_INDEX_BYTES, BundleIndex, parse_index
from hotdelta.chain.bundle.slice_key import row_slices
from hotdelta.chain.format import names
from hotdelta.chain.history.verification import open_listed, require_digest, unreadable
from hotdelta.errors import DamagedError, ManifestError
from loader.files.fed_update import FedUpdate, array_dtype
from loader.files.file_bytes import Bytes, aligned, read_into

Array = npt.NDArray[Any]

# What is not larger is read at once: a call for each tensor would take longer. TensorFlow copies what lies in it.
_WHOLE_BYTES = 64 * 1024


class DeltaFiles:
    """The files of a delta that serving reads. Everything raises DamagedError.

    One thread opens it, reads and loads; after that nothing changes, and any thread may look.
    """

    def __init__(self, run_dir: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._directory = directory_of(run_dir, manifest.kind)
        self._opened = contextlib.ExitStack()
        records = {file.name: file for file in manifest.files if file.role == names.ROLE_SERVING}
        try:
            self._index = self._open(self._index_record())
            index = self._read_index()
            self.entries = index.entries
            self._shards = {
                shard: self._open(records[name])
                for shard in range(index.num_shards)
                if (name := names.data_name(manifest.prefix, shard, index.num_shards)) in records
            }
        except BaseException:
            self._opened.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the files. What was loaded stays."""
        self._opened.close()

    @property
    def prefix(self) -> Path:
        return self._directory / self.manifest.prefix

    def shard_bytes(self, shard: int) -> int:
        """How large a data file is; 0 for one that serving does not read."""
        found = self._shards.get(shard)
        return found.record.bytes if found else 0

    def read(self, name: str) -> Array:
        """One tensor."""
        entry = self._entry(name)
        dtype = array_dtype(entry.dtype)
        content = self._joined(name, entry) if entry.is_sliced else self._content(name, entry)
        if len(content) != math.prod(entry.shape) * dtype.itemsize:
            raise self._damaged(f"{name!r} has {len(content)} bytes, which is not {dtype}{list(entry.shape)}")
        return content.view(dtype).reshape(entry.shape)

    def load(self) -> None:
        """Read all that was not read yet."""
        for shard, file in self._shards.items():
            places = {(entry.offset, entry.size) for entry in self.entries.values() if entry.shard == shard}
            end = 0
            for offset, size in sorted(place for place in places if place[1]):
                if offset < end:
                    raise self._damaged(f"two of its tensors lie at byte {offset} of data file {shard}")
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
        raise self._damaged("its manifest lists no index")

    def _read_index(self) -> BundleIndex:
        size = self._index.record.bytes
        if size > MAX_INDEX_BYTES:
            raise self._damaged(f"its index is larger than {MAX_INDEX_BYTES} bytes")
        return parse_index(self._index.read(0, size).tobytes(), self._index.path)

    def _open(self, record: FileRecord) -> _OpenFile:
        path, position = self._directory / record.name, str(self.manifest.position)
        descriptor = open_listed(path, record, position)
        self._opened.callback(os.close, descriptor)
        return _OpenFile(path, record, position, descriptor)

    def _content(self, name: str, entry: BundleEntry) -> Bytes:
        file = self._shards.get(entry.shard)
        if file is None or entry.offset + entry.size > file.record.bytes:
            raise self._damaged(f"{name!r} is not in the files that serving reads")
        return file.read(entry.offset, entry.size)

    def _joined(self, name: str, entry: BundleEntry) -> Bytes:
        """A tensor of which several parameter servers wrote some rows each."""
        try:
            keys = row_slices(name, entry)
        except ManifestError as error:
            raise self._damaged(str(error)) from error
        parts = [self._content(key, self._entry(key)) for key in keys]
        joined = aligned(sum(len(part) for part in parts))
        return np.concatenate(parts, out=joined) if parts else joined

    def _entry(self, name: str) -> BundleEntry:
        entry = self.entries.get(name)
        if entry is None:
            raise self._damaged(f"it has no {name!r}")
        return entry

    def _damaged(self, reason: str) -> DamagedError:
        position = str(self.manifest.position)
        return DamagedError(
            f"delta {position}: {reason}", path=self.prefix, position=position, hint="wait for the next full"
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

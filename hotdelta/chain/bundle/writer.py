"""Tensor bundles as TensorFlow reads and writes them (SaveV2, RestoreV2), durable and without TensorFlow.

A bundle is an index file and one data file per shard. The writer leaves them under temporary names: what it
returns is prepared, not committed. To the chain the values are opaque bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.bundle.dtypes import has_fixed_size, stored_dtype, tensor_bytes
from hotdelta.chain.bundle.index import BundleEntry, BundleIndex, encode_index
from hotdelta.chain.bundle.row_memory import byte_rows, flat_bytes
from hotdelta.chain.bundle.shard_file import Checksums, Extent, ShardFile, aligned_offset
from hotdelta.chain.bundle.slice_key import SLICE_MARK, can_be_sliced, slice_entries
from hotdelta.chain.disk import Disk, write_durably
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import FileRecord
from hotdelta.chain.write_failure import translated


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """One tensor of a bundle: what it is, and the shard whose data file holds it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int

    @property
    def row_bytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape[1:])

    @property
    def size(self) -> int:
        return tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class PreparedBundle:
    """A bundle that is written and durable under temporary names, but not committed."""

    directory: Path
    prefix: str
    files: tuple[FileRecord, ...]
    temporary_names: Mapping[str, str]

    def renamed(self, prefix: str) -> PreparedBundle:
        """The same files, to be committed under another prefix: a full is named after the step at which it closed."""
        new_names = {file.name: prefix + file.name.removeprefix(self.prefix) for file in self.files}
        return PreparedBundle(
            self.directory,
            prefix,
            tuple(replace(file, name=new_names[file.name]) for file in self.files),
            {new_names[name]: temporary for name, temporary in self.temporary_names.items()},
        )


class BundleWriter:
    """Writes one tensor bundle. The layout is fixed up front, so rows may come in any order; a tensor may get more rows
    at the end.

    One thread at a time. Every method but `abandon` raises CommitError when the disk fails; then call `abandon`.
    """

    def __init__(
        self,
        directory: Path,
        prefix: str,
        tensors: Sequence[TensorLayout],
        *,
        shard_roles: Sequence[str],
        disk: Disk,
    ) -> None:
        _check_layout(tensors, len(shard_roles))
        self._directory = directory
        self._prefix = prefix
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._extents = [_place(tensors, shard) for shard in range(len(shard_roles))]
        self._shard_roles = shard_roles
        self._disk = disk
        self._shards: list[ShardFile] = []
        self._rows_written = dict.fromkeys(self._tensors, 0)
        self._appended: dict[str, tuple[int, Extent]] = {}
        try:
            with self._translated():
                for shard, extents in enumerate(self._extents):
                    path = self._temporary(self._data_name(shard))
                    self._shards.append(ShardFile.create(path, extents, disk))
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, values: npt.NDArray[Any]) -> None:
        """Writes a whole tensor."""
        tensor = self._checked(name, values, values.shape)
        with self._translated():
            self._shards[tensor.shard].write_tensor(name, flat_bytes(values).data)
        self._rows_written[name] = _count_rows(tensor)

    def write_rows(self, name: str, first_row: int, rows: npt.NDArray[Any]) -> None:
        """Writes rows that lie side by side."""
        tensor = self._checked(name, rows, (self._tensors[name].shape[0], *rows.shape[1:]))
        if not 0 <= first_row <= first_row + len(rows) <= tensor.shape[0]:
            raise ValueError(
                f"rows {first_row} to {first_row + len(rows)} of {name!r} are outside {tensor.shape}"
            )
        with self._translated():
            self._shards[tensor.shard].write_part(name, flat_bytes(rows).data, first_row * tensor.row_bytes)
        self._rows_written[name] += len(rows)

    def patch_rows(self, name: str, ids: npt.NDArray[np.int64], rows: npt.NDArray[Any]) -> None:
        """Writes scattered rows over what is there; `ids` are sorted and unique."""
        tensor = self._checked(name, rows, (self._tensors[name].shape[0], *rows.shape[1:]))
        if len(ids) != len(rows):
            raise ValueError(f"{len(ids)} ids for {len(rows)} rows of {name!r}")
        if len(ids) == 0 or tensor.row_bytes == 0:
            return
        if ids[0] < 0 or ids[-1] >= tensor.shape[0] or (np.diff(ids) <= 0).any():
            raise ValueError(f"ids of {name!r} are not sorted, not unique or outside {tensor.shape}")
        with self._translated():
            self._shards[tensor.shard].patch_rows(name, ids, byte_rows(rows))

    def append_rows(self, name: str, rows: npt.NDArray[Any]) -> None:
        """Rows behind those of the layout, of a table that grew meanwhile: once, and after all other rows of it.

        The tensor is then stored in two slices, which RestoreV2 joins, but not those of every dtype.
        """
        tensor = self._checked(name, rows, (self._tensors[name].shape[0], *rows.shape[1:]))
        if name in self._appended:
            raise ValueError(f"rows were appended to {name!r} already")
        if not len(rows):
            return
        if tensor.shape[0] and not can_be_sliced(tensor.dtype):
            raise ValueError(f"{name!r} is {tensor.dtype}, of which TensorFlow joins no slices")
        with self._translated():
            extent = self._shards[tensor.shard].append_tensor(_behind(name), flat_bytes(rows).data)
        self._appended[name] = (len(rows), extent)

    def finish(self) -> PreparedBundle:
        """Makes data files and index durable. Raises ValueError when a tensor was not written completely."""
        for name, tensor in self._tensors.items():
            if self._rows_written[name] < _count_rows(tensor):
                raise ValueError(f"tensor {name!r} of {self._prefix} was not written completely")
        with self._translated():
            checksums = [shard.finish() for shard in self._shards]
            files = [
                FileRecord(self._data_name(number), shard.size, checksum.digest, self._shard_roles[number])
                for number, (shard, checksum) in enumerate(zip(self._shards, checksums, strict=True))
            ]
            files.append(self._write_index(checksums))
        temporary_names = {file.name: f"{names.TEMPORARY_PREFIX}{file.name}" for file in files}
        return PreparedBundle(self._directory, self._prefix, tuple(files), temporary_names)

    def abandon(self) -> None:
        """Removes the temporary files. Never raises OSError: what stays is swept at the next start."""
        for shard in self._shards:
            with contextlib.suppress(OSError):
                shard.close()
        final_names = [self._data_name(shard) for shard in range(len(self._shard_roles))]
        for name in [*final_names, names.index_name(self._prefix)]:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._temporary(name))

    def _write_index(self, checksums: Sequence[Checksums]) -> FileRecord:
        content = encode_index(BundleIndex(len(self._shards), self._entries(checksums)))
        name = names.index_name(self._prefix)
        write_durably(self._disk, self._temporary(name), content)
        return FileRecord(name, len(content), digest_bytes(content), names.ROLE_INDEX)

    def _entries(self, checksums: Sequence[Checksums]) -> dict[str, BundleEntry]:
        entries = {}
        for name, tensor in self._tensors.items():
            extent, crc32c = self._extents[tensor.shard][name], checksums[tensor.shard].crc32c
            pieces = [_entry(tensor, tensor.shape, extent, crc32c[name])]
            if name in self._appended:
                count, extent = self._appended[name]
                pieces.append(_entry(tensor, (count, *tensor.shape[1:]), extent, crc32c[_behind(name)]))
            # TensorFlow knows no slice without rows.
            pieces = [piece for piece in pieces if piece.shape[:1] != (0,)] or pieces[:1]
            entries.update({name: pieces[0]} if len(pieces) == 1 else slice_entries(name, pieces))
        return entries

    def _checked(self, name: str, values: npt.NDArray[Any], shape: tuple[int, ...]) -> TensorLayout:
        tensor = self._tensors[name]
        if (
            values.dtype.name not in (tensor.dtype, stored_dtype(tensor.dtype).name)
            or not values.dtype.isnative
            or shape != tensor.shape
        ):
            raise ValueError(
                f"{name!r} is {tensor.dtype} {tensor.shape}, but {values.dtype} {values.shape} was given"
            )
        return tensor

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(f"writing {self._prefix}", self._directory)

    def _temporary(self, name: str) -> Path:
        return self._directory / f"{names.TEMPORARY_PREFIX}{name}"

    def _data_name(self, shard: int) -> str:
        return names.data_name(self._prefix, shard, len(self._shard_roles))


def _check_layout(tensors: Sequence[TensorLayout], num_shards: int) -> None:
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ValueError("two tensors of a bundle have the same name")
    for tensor in tensors:
        if not tensor.name or not has_fixed_size(tensor.dtype):
            raise ValueError(f"tensor {tensor.name!r} of {tensor.dtype} cannot be written to a bundle")
        if not 0 <= tensor.shard < num_shards or min(tensor.shape, default=0) < 0:
            raise ValueError(f"tensor {tensor.name!r} has shard {tensor.shard} and shape {tensor.shape}")


def _place(tensors: Sequence[TensorLayout], shard: int) -> dict[str, Extent]:
    extents: dict[str, Extent] = {}
    end = 0
    for tensor in tensors:
        if tensor.shard == shard:
            offset = aligned_offset(end)
            extents[tensor.name] = Extent(offset, tensor.size)
            end = offset + tensor.size
    return extents


def _entry(tensor: TensorLayout, shape: tuple[int, ...], extent: Extent, crc32c: int) -> BundleEntry:
    return BundleEntry(tensor.dtype, shape, tensor.shard, extent.offset, extent.size, crc32c)


def _behind(name: str) -> str:
    """What a data file calls the rows that were appended to a tensor; no tensor is called so."""
    return f"{SLICE_MARK}{name}"


def _count_rows(tensor: TensorLayout) -> int:
    return tensor.shape[0] if tensor.shape else 1

"""One bundle of bundles that several processes wrote, each its own rows, into a directory that all of them share.

Only indexes are merged: the data files stay what they are, and are given their names when the bundle is committed. A
tensor whose rows lie in several parts becomes one tensor in slices, which RestoreV2 and BundleReader join. RestoreV2
joins no slices of float16 and of unsigned integers: these tensors are copied into data files of their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hotdelta.chain.bundle.digest import digest_bytes, digest_file
from hotdelta.chain.bundle.index import BundleEntry, BundleIndex, encode_index, read_index
from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.bundle.slice_key import can_be_sliced, slice_entries
from hotdelta.chain.bundle.writer import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk, write_durably
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import FileRecord
from hotdelta.chain.write_failure import translated
from hotdelta.errors import CommitError, DamagedError


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a tensor: the whole of the tensor that part number `part` calls `name`."""

    part: int
    name: str


def adopt_part(directory: Path, prefix: str, *, role: str, disk: Disk) -> PreparedBundle:
    """The bundle that SaveV2 wrote, in whatever process, as `<directory>/.tmp-<prefix>`: now it is durable.

    Raises CommitError when it is not there or not whole.
    """
    data, index = names.data_name(prefix, 0, 1), names.index_name(prefix)
    with translated(f"adopting {prefix}", directory):
        files = (_synced(directory, data, role, disk), _synced(directory, index, names.ROLE_INDEX, disk))
    return PreparedBundle(directory, prefix, files, {name: _temporary(name) for name in (data, index)})


def merge_parts(
    prefix: str, parts: Sequence[PreparedBundle], joined: Mapping[str, Sequence[Piece]], *, disk: Disk
) -> PreparedBundle:
    """All data files of the parts as one bundle, durable under temporary names; the parts' own indexes are removed.

    The rows of a tensor of `joined` are those of its pieces, one piece after the other; every other tensor keeps its
    name. Raises CommitError when the disk fails or a part is damaged: then `discard_parts` what there is.
    """
    directory, indexes = parts[0].directory, [_read_index(part) for part in parts]
    content = _Merge(indexes, joined)
    if content.copied:
        parts = [*parts, _copy(f"{prefix}.joined", parts, content.copied, disk)]
        content.add_copies(_read_index(parts[-1]))
    data, temporary_names = _number_data_files(prefix, parts)
    name, index = names.index_name(prefix), encode_index(content.index)
    with translated(f"writing {prefix}", directory):
        write_durably(disk, directory / _temporary(name), index)
        for part in parts:
            disk.unlink(directory / _temporary(names.index_name(part.prefix)))
    record = FileRecord(name, len(index), digest_bytes(index), names.ROLE_INDEX)
    return PreparedBundle(directory, prefix, (*data, record), {**temporary_names, name: _temporary(name)})


def discard_parts(directory: Path, stem: str, *, disk: Disk) -> None:
    """Remove every temporary file whose name goes on from `stem`. Never raises OSError: a sweep finds what stays."""
    with contextlib.suppress(OSError):
        for path in sorted(directory.iterdir()):
            if path.name.startswith(_temporary(stem)):
                with contextlib.suppress(OSError):
                    disk.unlink(path)


class _Merge:
    """The entries of the merged bundle. `copied` has the tensors that cannot be slices, with their pieces."""

    def __init__(self, indexes: Sequence[BundleIndex], joined: Mapping[str, Sequence[Piece]]) -> None:
        self._num_shards = 0
        self._entries: dict[str, BundleEntry] = {}
        self.copied: dict[str, Sequence[Piece]] = {}
        moved = [self._take_shards(index) for index in indexes]
        for name, pieces in joined.items():
            self._join(name, pieces, [moved[piece.part].pop(piece.name) for piece in pieces])
        for part in moved:
            self._add(part)

    @property
    def index(self) -> BundleIndex:
        return BundleIndex(self._num_shards, self._entries)

    def add_copies(self, index: BundleIndex) -> None:
        self._add(self._take_shards(index))

    def _take_shards(self, index: BundleIndex) -> dict[str, BundleEntry]:
        first = self._num_shards
        self._num_shards += index.num_shards
        return {name: replace(entry, shard=entry.shard + first) for name, entry in index.entries.items()}

    def _add(self, entries: Mapping[str, BundleEntry]) -> None:
        if twice := sorted(self._entries.keys() & entries.keys()):
            raise ValueError(f"tensor {twice[0]!r} is in two parts, and nothing says how to join them")
        self._entries.update(entries)

    def _join(self, name: str, pieces: Sequence[Piece], found: Sequence[BundleEntry]) -> None:
        """TensorFlow knows no slice without rows, so empty pieces are left out."""
        is_fitting = len({(entry.dtype, entry.shape[1:]) for entry in found}) == 1
        if not is_fitting or (len(found) > 1 and not all(entry.shape for entry in found)):
            raise ValueError(f"the pieces of {name!r} do not fit: {[(e.dtype, e.shape) for e in found]}")
        full = [entry for entry in found if entry.shape[:1] != (0,)] or found[:1]
        if len(full) == 1:
            self._add({name: full[0]})
        elif not can_be_sliced(full[0].dtype):
            self.copied[name] = pieces
        else:
            self._add(slice_entries(name, full))


def _copy(
    prefix: str, parts: Sequence[PreparedBundle], tensors: Mapping[str, Sequence[Piece]], disk: Disk
) -> PreparedBundle:
    """One more part, with one data file for each role of the pieces."""
    with contextlib.ExitStack() as opened:
        readers = [
            opened.enter_context(BundleReader(part.directory, _temporary(part.prefix))) for part in parts
        ]
        values = {
            name: np.concatenate([readers[piece.part].map(piece.name) for piece in pieces])
            for name, pieces in tensors.items()
        }
    role_of = {name: _role(parts[pieces[0].part]) for name, pieces in tensors.items()}
    roles = sorted(set(role_of.values()))
    layouts = [
        TensorLayout(name, array.dtype.name, array.shape, roles.index(role_of[name]))
        for name, array in values.items()
    ]
    writer = BundleWriter(parts[0].directory, prefix, layouts, shard_roles=roles, disk=disk)
    try:
        for name, array in values.items():
            writer.write(name, array)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _role(part: PreparedBundle) -> str:
    return next(file.role for file in part.files if file.role != names.ROLE_INDEX)


def _number_data_files(
    prefix: str, parts: Sequence[PreparedBundle]
) -> tuple[list[FileRecord], dict[str, str]]:
    """Records of the data files under their new names, and the temporary name of each."""
    found = [
        (part.temporary_names[file.name], file)
        for part in parts
        for file in part.files
        if file.role != names.ROLE_INDEX
    ]
    records = [
        replace(file, name=names.data_name(prefix, number, len(found)))
        for number, (_, file) in enumerate(found)
    ]
    return records, {record.name: temporary for record, (temporary, _) in zip(records, found, strict=True)}


def _read_index(part: PreparedBundle) -> BundleIndex:
    path = part.directory / _temporary(names.index_name(part.prefix))
    try:
        return read_index(path)
    except DamagedError as error:
        raise CommitError(f"a part cannot be used: {error}", path=path) from error


def _synced(directory: Path, name: str, role: str, disk: Disk) -> FileRecord:
    """SaveV2 never calls fsync."""
    descriptor = os.open(directory / _temporary(name), os.O_RDWR | os.O_CLOEXEC)
    try:
        disk.fsync(descriptor)
        size, digest = digest_file(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(name, size, digest, role)


def _temporary(name: str) -> str:
    return f"{names.TEMPORARY_PREFIX}{name}"

"""Where the tensors of a state lie, link by link: every index file is parsed once and kept in few bytes.

20,000 parsed indexes as they are would take more memory than what they are an index of.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hotdelta.chain.bundle.dtypes import has_fixed_size, tensor_bytes
from hotdelta.chain.bundle.file_bytes import read_plainly
from hotdelta.chain.bundle.index import MAX_INDEX_BYTES, BundleEntry, BundleIndex, parse_index
from hotdelta.chain.bundle.slice_key import is_slice_key, row_slices
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import FileRecord, Kind, Manifest
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.verification import directory_of, unreadable
from hotdelta.errors import DamagedError
from hotdelta.logs import ProgressLog


class TensorType(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_readable(self) -> bool:
        return has_fixed_size(self.dtype)

    @property
    def size(self) -> int:
        return tensor_bytes(self.dtype, self.shape) if self.is_readable else 0


class Extent(NamedTuple):
    """Bytes of a data file."""

    shard: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where one link has a tensor: in one extent, or in one for each server that wrote some of its rows."""

    link: int
    type: TensorType
    extents: Sequence[Extent]

    @property
    def size(self) -> int:
        return sum(extent.size for extent in self.extents)


class StateIndex:
    """The places of every tensor of a state. Link 0 is the full. Raises DamagedError for an index that is none."""

    def __init__(self, state: ChainState) -> None:
        self._state = state
        self._types: dict[TensorType, int] = {}
        self._known_types: list[TensorType] = []
        self._sizes: list[int] = []
        self._columns: dict[str, _Column] = {}
        self._sliced: dict[tuple[str, int], tuple[Extent, ...]] = {}
        self._num_shards = array("I")
        self._directories = {kind: directory_of(state.run_dir, kind) for kind in Kind}
        progress = ProgressLog("reading indexes of deltas", of=len(state.deltas))
        for link, manifest in enumerate(state.manifests):
            progress.tell(link)
            self._add(link, manifest)

    @property
    def num_links(self) -> int:
        return len(self._num_shards)

    def manifest(self, link: int) -> Manifest:
        return self._state.deltas[link - 1] if link else self._state.full

    def names_in(self, link: int) -> Iterator[str]:
        """Every tensor of a link."""
        return (name for name, column in self._columns.items() if column.find(link) is not None)

    def place(self, name: str, link: int) -> Place | None:
        column = self._columns.get(name)
        at = column.find(link) if column is not None else None
        return self._place(name, column, at) if column is not None and at is not None else None

    def places(self, name: str, *, newest_first: bool = False) -> Iterator[Place]:
        """In the order of the links."""
        column = self._columns.get(name)
        if column is not None:
            for at in range(len(column.links))[:: -1 if newest_first else 1]:
                yield self._place(name, column, at)

    def file(self, link: int, shard: int) -> tuple[Path, FileRecord]:
        """A data file. Raises DamagedError when its manifest does not list it."""
        manifest = self.manifest(link)
        directory = directory_of(self._state.run_dir, manifest.kind)
        name = names.data_name(manifest.prefix, shard, self._num_shards[link])
        for file in manifest.files:
            if file.name == name:
                return directory / name, file
        raise DamagedError(
            f"{name} of {manifest.position} is not listed in its manifest",
            path=directory / name,
            position=str(manifest.position),
        )

    def shard_path(self, link: int, shard: int) -> str:
        """The same as text: 20,000 of them are read one after the other. Raises DamagedError."""
        manifest = self.manifest(link)
        name = names.data_name(manifest.prefix, shard, self._num_shards[link])
        if not any(file.name == name for file in manifest.files):
            self.file(link, shard)
        return f"{self._directories[manifest.kind]}{os.sep}{name}"

    def has(self, name: str) -> bool:
        """Whether any link has it."""
        return name in self._columns

    def _place(self, name: str, column: _Column, at: int) -> Place:
        link, number = column.links[at], column.types[at]
        found = self._known_types[number]
        if self._sliced and (name, link) in self._sliced:
            return Place(link, found, self._sliced[name, link])
        return Place(link, found, (Extent(column.shards[at], column.offsets[at], self._sizes[number]),))

    def _add(self, link: int, manifest: Manifest) -> None:
        index = self._read(manifest)
        self._num_shards.append(index.num_shards)
        columns, types = self._columns, self._types
        for name, entry in index.entries.items():
            if is_slice_key(name):
                continue
            found = TensorType(entry.dtype, entry.shape)
            number = types.get(found)
            if number is None:
                number = types[found] = len(types)
                self._known_types.append(found)
                self._sizes.append(found.size)
            if entry.slices:
                self._sliced[name, link] = self._extents(name, entry, index, manifest)
            elif entry.size != self._sizes[number] and found.is_readable:
                raise self._damaged(manifest, f"has {entry.size} bytes for tensor {name!r} of {entry.shape}")
            column = columns.get(name)
            if column is None:
                column = columns[name] = _Column()
            column.links.append(link)
            column.types.append(number)
            column.shards.append(entry.shard)
            column.offsets.append(entry.offset)

    def _extents(
        self, name: str, entry: BundleEntry, index: BundleIndex, manifest: Manifest
    ) -> tuple[Extent, ...]:
        parts = [index.entries.get(key) for key in row_slices(name, entry)]
        extents = tuple(Extent(part.shard, part.offset, part.size) for part in parts if part is not None)
        if sum(extent.size for extent in extents) != TensorType(entry.dtype, entry.shape).size:
            raise self._damaged(manifest, f"does not hold all of tensor {name!r}")
        return extents

    def _read(self, manifest: Manifest) -> BundleIndex:
        path = f"{self._directories[manifest.kind]}{os.sep}{manifest.prefix}{names.INDEX_SUFFIX}"
        try:
            content = read_plainly(path, MAX_INDEX_BYTES)
        except OSError as error:
            raise unreadable(Path(path), str(manifest.position), error) from error
        if len(content) > MAX_INDEX_BYTES:
            raise self._damaged(manifest, f"is larger than {MAX_INDEX_BYTES} bytes")
        return parse_index(content, path)

    def _damaged(self, manifest: Manifest, reason: str) -> DamagedError:
        path = Path(f"{self._state.path(manifest)}{names.INDEX_SUFFIX}")
        return DamagedError(f"index {path.name} {reason}", path=path, position=str(manifest.position))


class _Column:
    """One tensor in all the links that have it, in the order of the links."""

    __slots__ = ("links", "offsets", "shards", "types")

    def __init__(self) -> None:
        self.links = array("I")
        self.types = array("I")
        self.shards = array("I")
        self.offsets = array("Q")

    def find(self, link: int) -> int | None:
        at = bisect_left(self.links, link)
        return at if at < len(self.links) and self.links[at] == link else None

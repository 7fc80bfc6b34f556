"""Reads the variables of a state: each as the full has it, with the rows of all deltas written over it.

In the time and memory that the rows take, however many links there are: small deltas are put together in memory, few
files are open at a time, and a table passes through memory once for many links. Files are read, not mapped: one that
becomes shorter meanwhile is an error, and does not end the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta.chain.bundle.delta_tensors import possible_ids
from hotdelta.chain.bundle.reader import numpy_dtype
from hotdelta.chain.format import names
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.state_index import Place, StateIndex, TensorType
from hotdelta.chain.history.verification import open_plainly, unreadable
from hotdelta.errors import DamagedError, ManifestError
from hotdelta.logs import ProgressLog

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]

_OWN_TENSORS = {names.IDENTITY_TENSOR, names.STEP_TENSOR, names.TRAINER_STATE_TENSOR}
_ALIGNMENT_BYTES = 64
_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """How much is read and held at a time.

    A chunk of a table stays in the cache while rows are written to it. Deltas that have less than `small_bytes` of a
    variable are put together until they are `fold_bytes`. What is held beside the table takes about `held_bytes`.
    """

    chunk_bytes: int = 8 * 1024 * 1024
    small_bytes: int = 1024 * 1024
    fold_bytes: int = 8 * 1024 * 1024
    held_bytes: int = 128 * 1024 * 1024
    open_files: int = 64


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

    def read(self) -> bytes:
        """Raises DamagedError when the file changed."""
        memory = np.empty(self.size, np.uint8)
        with _Files(1) as files:
            files.read(self.path, self.offset, memory)
        return memory.tobytes()


@dataclass(frozen=True, slots=True)
class _Patch:
    """The rows that one delta has of a variable, and their ids."""

    rows: Place
    ids: Place

    @property
    def size(self) -> int:
        return self.rows.size + self.ids.size


class StateReader:
    """The tensors of one state. Everything raises DamagedError when a file is not what its index says.

    Holds no file open between two calls. One thread at a time.
    """

    def __init__(self, state: ChainState, *, limits: ReadingLimits | None = None) -> None:
        self.state = state
        self._limits = limits or ReadingLimits()
        self._index = StateIndex(state)

    def newest_keys(self) -> set[str]:
        """The variables that the newest link knows. A full before it may hold those of an optimizer that went."""
        newest = self._index.num_links - 1
        if not newest:
            return set(self._index.names_in(0)) - _OWN_TENSORS
        suffixes = (names.ROWS_SUFFIX, names.VALUE_SUFFIX)
        return {
            name.removesuffix(suffix)
            for name in self._index.names_in(newest)
            for suffix in suffixes
            if name.endswith(suffix)
        }

    def type_of(self, key: str) -> TensorType | None:
        """Dtype and shape, from the link that holds all of it; None when no link does.

        A recompiled optimizer brings its slots in the middle of a chain, whole, in one delta.
        """
        full = self._index.place(key, 0)
        if full is not None:
            return full.type
        rows = max(
            (place.type for place in self._index.places(key + names.ROWS_SUFFIX)),
            key=lambda found: found.shape[0],
            default=None,
        )
        value = self._last_value(key)
        return rows or (TensorType(value.type.dtype, value.type.shape[1:]) if value is not None else None)

    def newest_tensor(self, name: str) -> Array | None:
        """A tensor of the newest link; None when that does not have it."""
        place = self._index.place(name, self._index.num_links - 1)
        if place is None:
            return None
        with _Files(1) as files:
            return self._read(files, place)

    def value(self, key: str, *, owner: str = "", dtype: Any = None) -> Array:
        """All of a variable, in memory of its own that TensorFlow can take as it is.

        As numpy's dtype of these bits (bfloat16: uint16), or as `dtype`. `owner`: the table that it is a slot of.
        """
        found = self._require_type(key)
        value = _aligned(found, dtype)
        table = value if value.ndim else value.reshape(1)
        base, patches = self._history(key, found, owner)
        count = rows_within(self._limits.chunk_bytes, len(table), table.nbytes)
        starts = range(0, len(table), count)
        with ThreadPoolExecutor(_THREADS, "hotdelta-reading") as pool:

            def fill(write: Callable[[Array, int], None]) -> None:
                list(
                    (pool.map if len(starts) > 1 else map)(
                        lambda at: write(table[at : at + count], at), starts
                    )
                )

            if base is not None:
                with _Files(self._limits.open_files) as files:
                    fill(partial(self._read_rows, files, base))
            for pieces in self._batches(self._fold(patches, found, table.dtype, self._is_small)):
                with _Files(self._limits.open_files) as files:
                    fill(partial(self._write_pieces, files, pieces))
        return value

    def slices(
        self, key: str, max_bytes: int, *, owner: str = "", dtype: Any = None
    ) -> Iterator[tuple[int, Array]]:
        """All of a variable, in order, as (first row, some rows): `max_bytes` at most, or one row.

        Each in memory of its own, as `value` has it. A variable without axes comes as row 0.
        """
        found = self._require_type(key)
        if not found.shape or not found.size:
            yield 0, self.value(key, owner=owner, dtype=dtype)
            return
        base, patches = self._history(key, found, owner)
        count = rows_within(max_bytes, found.shape[0], found.size)
        starts = range(0, found.shape[0], count)
        pieces = [
            piece.fenced(starts) if isinstance(piece, _FiledRows) else piece
            for piece in self._fold(patches, found, _numpy(found, dtype), _Budget(self._limits))
        ]
        with _Files(self._limits.open_files) as files:
            for first in starts:
                shape = (min(count, found.shape[0] - first), *found.shape[1:])
                rows = _aligned(TensorType(found.dtype, shape), dtype)
                if base is not None:
                    self._read_rows(files, base, rows, first)
                self._write_pieces(files, pieces, rows, first)
                yield first, rows

    def changes(self, key: str, *, owner: str = "", dtype: Any = None) -> Iterator[tuple[Ids | None, Array]]:
        """What the deltas change of a variable, in order: rows of ids, which are sorted; or, with None, all of it."""
        found = self._require_type(key)
        base, patches = self._history(key, found, owner)
        if base is not None and base.link:
            with _Files(1) as files:
                yield None, self._read(files, base, dtype).reshape(found.shape)
        for piece in self._fold(patches, found, _numpy(found, dtype), lambda _: True):
            if isinstance(piece, _HeldRows):
                yield piece.ids, piece.rows

    def stored_rows(self, key: str, *, owner: str = "") -> Iterator[StoredRows]:
        """Where the rows of a variable are, in the order in which they count, for somebody else to read them."""
        found = self._require_type(key)
        base, patches = self._history(key, found, owner)
        if base is not None:
            yield from self._stored(base, np.arange(found.shape[0]))
        for patch in patches:
            with _Files(1) as files:
                ids = self._read(files, patch.ids)
            yield from self._stored(patch.rows, ids)

    def _history(self, key: str, found: TensorType, owner: str) -> tuple[Place | None, list[_Patch]]:
        """What all of a variable is read from, and the rows that are written over it then.

        That may be a delta: what is a table now may have been none when the chain began.
        """
        base = self._last_value(key) or self._index.place(key, 0)
        if base is not None and base.type.size != found.size:
            raise self._damaged(base.link, f"{key!r} is {base.type} there, and {found} elsewhere")
        possible = [name for name in possible_ids(key, owner=owner) if self._index.has(name)]
        patches = [
            _Patch(rows, self._find_ids(key, rows, found, possible))
            for rows in self._index.places(key + names.ROWS_SUFFIX)
            if rows.type.shape[0] and (base is None or rows.link > base.link)
        ]
        return base, patches

    def _find_ids(self, key: str, rows: Place, found: TensorType, possible: Iterable[str]) -> Place:
        if (rows.type.dtype, rows.type.shape[1:]) != (found.dtype, found.shape[1:]):
            raise self._damaged(rows.link, f"rows of {key!r} are {rows.type} there, and it is {found}")
        for name in possible:
            place = self._index.place(name, rows.link)
            if place is not None:
                if place.type != TensorType("int64", rows.type.shape[:1]):
                    raise self._damaged(rows.link, f"ids of {key!r} are {place.type}, and rows {rows.type}")
                return place
        raise self._damaged(rows.link, f"it has no ids for the rows of {key!r}")

    def _last_value(self, key: str) -> Place | None:
        """Where the newest whole value is that a delta has: one that did not change has a leading axis of 0."""
        places = self._index.places(key + names.VALUE_SUFFIX, newest_first=True)
        return next((place for place in places if place.type.shape[:1] == (1,)), None)

    def _require_type(self, key: str) -> TensorType:
        found = self.type_of(key)
        if found is None:
            raise self._damaged(self._index.num_links - 1, f"no link has all of {key!r}")
        if not found.is_readable:
            raise ManifestError(f"tensor {key!r} is {found.dtype}, which is not read here")
        return found

    def _fold(
        self, patches: Sequence[_Patch], found: TensorType, dtype: Any, is_small: Callable[[int], bool]
    ) -> Iterator[_Piece]:
        """The patches in order: small ones put together in memory, the others left in their files."""
        progress = ProgressLog("reading deltas", of=len(patches))
        gathered, size = list[_Patch](), 0
        for done, patch in enumerate(patches):
            progress.tell(done)
            is_held = is_small(patch.size)
            if gathered and (not is_held or size >= self._limits.fold_bytes):
                yield self._read_together(gathered, found, dtype)
                gathered, size = [], 0
            if is_held:
                gathered.append(patch)
                size += patch.size
            else:
                yield self._leave(patch, found, dtype)
        if gathered:
            yield self._read_together(gathered, found, dtype)

    def _is_small(self, size: int) -> bool:
        return size < self._limits.small_bytes

    def _batches(self, pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
        """As many at a time as may be held, and as may be open."""
        batch, held = list[_Piece](), 0
        for piece in pieces:
            batch.append(piece)
            held += piece.held_bytes
            if held >= self._limits.held_bytes or len(batch) >= self._limits.open_files:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch

    def _leave(self, patch: _Patch, found: TensorType, dtype: Any) -> _Piece:
        with _Files(1) as files:
            ids = self._read_ids(files, patch, found)
        if (np.diff(ids) <= 0).any():
            return self._read_together([patch], found, dtype)
        return _FiledRows(patch.rows, patch.ids, ids)

    def _read_together(self, patches: Sequence[_Patch], found: TensorType, dtype: Any) -> _HeldRows:
        """Of each id the last row. The file of each patch is opened once."""
        counts = [patch.rows.type.shape[0] for patch in patches]
        ids = np.empty(sum(counts), np.int64)
        rows = np.empty((len(ids), *found.shape[1:]), dtype)
        ids_left, rows_left = ids.view(np.uint8), rows.reshape(-1).view(np.uint8)
        for patch in patches:
            ids_size, rows_size = patch.ids.size, patch.rows.size
            self._read_patch(patch, ids_left[:ids_size], rows_left[:rows_size])
            ids_left, rows_left = ids_left[ids_size:], rows_left[rows_size:]
        is_outside = (ids < 0) | (ids >= found.shape[0])
        if is_outside.any():
            at = np.searchsorted(np.cumsum(counts), is_outside.argmax(), side="right")
            raise self._damaged(patches[int(at)].ids.link, f"it has rows outside {found}")
        return _put_together(ids, rows)

    def _read_patch(self, patch: _Patch, ids: _Bytes, rows: _Bytes) -> None:
        extents = (*patch.ids.extents, *patch.rows.extents)
        if len(extents) > 2 or extents[0].shard != extents[1].shard:
            # Several servers wrote it.
            with _Files(2) as files:
                self._read_rows(files, patch.ids, ids, 0)
                self._read_rows(files, patch.rows, rows, 0)
            return
        path = self._index.shard_path(patch.rows.link, extents[0].shard)
        try:
            descriptor = open_plainly(path)
            try:
                _read_into(descriptor, path, extents[0].offset, ids)
                _read_into(descriptor, path, extents[1].offset, rows)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unreadable(Path(path), "", error) from error

    def _read_ids(self, files: _Files, patch: _Patch, found: TensorType) -> Ids:
        ids = self._read(files, patch.ids)
        if len(ids) and (ids.min() < 0 or ids.max() >= found.shape[0]):
            raise self._damaged(patch.ids.link, f"it has rows outside {found}")
        return ids

    def _write_pieces(self, files: _Files, pieces: Sequence[_Piece], target: Array, first: int) -> None:
        for piece in pieces:
            if isinstance(piece, _HeldRows):
                piece.write_to(target, first)
            else:
                self._write_filed(files, piece, target, first)

    def _write_filed(self, files: _Files, piece: _FiledRows, target: Array, first: int) -> None:
        begin, end = piece.between(first, first + len(target))
        if begin == end:
            return
        if piece.fences is None:
            ids = piece.ids[begin:end] - first
        else:
            ids = np.empty(end - begin, np.int64)
            self._read_rows(files, piece.ids_place, ids, begin)
            ids -= first
        start, stop = int(ids[0]), int(ids[-1]) + 1
        if stop - start == len(ids):
            self._read_rows(files, piece.rows_place, target[start:stop], begin)
            return
        rows = np.empty((len(ids), *target.shape[1:]), target.dtype)
        self._read_rows(files, piece.rows_place, rows, begin)
        target[ids] = rows

    def _read(self, files: _Files, place: Place, dtype: Any = None) -> Array:
        """All of a tensor."""
        if not place.type.is_readable:
            raise self._damaged(place.link, f"it has {place.type}, which is not read here")
        memory = np.empty(place.type.shape, _numpy(place.type, dtype))
        self._read_rows(files, place, memory if memory.ndim else memory.reshape(1), 0)
        return memory

    def _read_rows(self, files: _Files, place: Place, target: Array, first: int) -> None:
        """Fills the target with the rows of a tensor from `first` on."""
        memory = target.reshape(-1).view(np.uint8)
        start = first * (memory.nbytes // max(1, len(target)))
        for extent in place.extents:
            if not len(memory):
                return
            if start < extent.size:
                size = min(len(memory), extent.size - start)
                path, _ = self._index.file(place.link, extent.shard)
                files.read(path, extent.offset + start, memory[:size])
                memory, start = memory[size:], 0
            else:
                start -= extent.size

    def _stored(self, place: Place, ids: Ids) -> Iterator[StoredRows]:
        row_bytes, first = place.type.size // max(1, len(ids)), 0
        for extent in place.extents:
            if extent.size:
                path, file = self._index.file(place.link, extent.shard)
                end = first + extent.size // row_bytes
                yield StoredRows(path.absolute(), file.bytes, extent.offset, extent.size, ids[first:end])
                first = end

    def _damaged(self, link: int, reason: str) -> DamagedError:
        manifest = self._index.manifest(link)
        position = str(manifest.position)
        path = Path(self.state.path(manifest))
        return DamagedError(f"{path.name} of {position}: {reason}", path=path, position=position)


@dataclass(frozen=True, slots=True)
class _HeldRows:
    """Rows in memory with their ids; put together, those are sorted, and there is one row of each."""

    ids: Ids
    rows: Array

    @property
    def held_bytes(self) -> int:
        return int(self.ids.nbytes + self.rows.nbytes)

    def write_to(self, target: Array, first: int) -> None:
        begin, end = np.searchsorted(self.ids, [first, first + len(target)])
        if begin < end:
            target[self.ids[begin:end] - first] = self.rows[begin:end]


@dataclass(frozen=True, slots=True)
class _FiledRows:
    """Rows in a file, sorted by their ids. Of many such only `fences` are held: how many ids are before each slice."""

    rows_place: Place
    ids_place: Place
    ids: Ids
    fences: Ids | None = None
    slice_rows: int = 0

    @property
    def held_bytes(self) -> int:
        return int(self.ids.nbytes)

    def fenced(self, starts: range) -> _FiledRows:
        fences = np.searchsorted(self.ids, [*starts, starts.stop])
        return replace(self, ids=np.empty(0, np.int64), fences=fences, slice_rows=starts.step)

    def between(self, first: int, end: int) -> tuple[int, int]:
        """Which of them have ids from `first` to before `end`."""
        if self.fences is not None:
            at = first // self.slice_rows
            return int(self.fences[at]), int(self.fences[at + 1])
        begin, stop = np.searchsorted(self.ids, [first, end])
        return int(begin), int(stop)


_Piece = _HeldRows | _FiledRows


class _Budget:
    """Says yes to what is small until so many bytes are held."""

    def __init__(self, limits: ReadingLimits) -> None:
        self._small_bytes = limits.small_bytes
        self._left = limits.held_bytes

    def __call__(self, size: int) -> bool:
        is_held = size < min(self._small_bytes, self._left)
        self._left -= size if is_held else 0
        return is_held


class _Files:
    """Open files: the first few stay open until the end, the others only while they are read. Any thread may read."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guard_opened = threading.Lock()
        self._opened: dict[Path, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def read(self, path: Path, offset: int, memory: npt.NDArray[np.uint8]) -> None:
        """Fills the memory. Raises DamagedError."""
        if not len(memory):
            return
        try:
            descriptor = self._find(path)
            if descriptor is not None:
                _read_into(descriptor, path, offset, memory)
                return
            descriptor = open_plainly(path)
            try:
                _read_into(descriptor, path, offset, memory)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unreadable(path, "", error) from error

    def _find(self, path: Path) -> int | None:
        with self._guard_opened:
            if path not in self._opened and len(self._opened) < self._most:
                self._opened[path] = open_plainly(path)
                self._stack.callback(os.close, self._opened[path])
            return self._opened.get(path)


def _read_into(descriptor: int, path: Path | str, offset: int, memory: _Bytes) -> None:
    buffer = memory.data
    while buffer:
        count = os.preadv(descriptor, [buffer], offset)
        if not count:
            raise DamagedError(f"{path} became shorter while it was read", path=Path(path), position="")
        buffer, offset = buffer[count:], offset + count


def _put_together(ids: Ids, rows: Array) -> _HeldRows:
    """Of each id the last row."""
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    is_last = np.append(ids[1:] != ids[:-1], True)
    return _HeldRows(ids[is_last], rows[order[is_last]])


def rows_within(max_bytes: int, rows: int, nbytes: int) -> int:
    """How many rows of a table of so many bytes are no more than `max_bytes`; one at least."""
    return max(1, max_bytes * rows // max(1, nbytes))


def _numpy(found: TensorType, dtype: Any) -> np.dtype[Any]:
    return numpy_dtype(found.dtype) if dtype is None else np.dtype(dtype)


def _aligned(found: TensorType, dtype: Any) -> Array:
    """numpy aligns to 16 bytes, TensorFlow takes over only memory that is aligned to 64."""
    memory = np.empty(found.size + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    value: Array = memory[start : start + found.size].view(_numpy(found, dtype)).reshape(found.shape)
    return value

"""Reads the variables of a state: each as the full has it, with the rows of all deltas written over it.

In the time and memory that the rows take, however many links there are: small deltas are put together in memory, few
files are open at a time, and a table passes through memory once for many links. Files are read, not mapped: one that
becomes shorter meanwhile is an error, and does not end the process. A growing table, and so each of its slots, has as
many rows as the newest link says: those that the full does not have came with deltas.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hotdelta.chain.bundle.delta_tensors import possible_ids, possible_tables
from hotdelta.chain.bundle.dtypes import stored_dtype
from hotdelta.chain.bundle.file_bytes import Bytes, aligned, open_plainly, read_into
from hotdelta.chain.bundle.row_memory import rows_within
from hotdelta.chain.format import names
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.state_index import Place, StateIndex, TensorType
from hotdelta.chain.history.state_pieces import (
    Array,
    FiledRows,
    HeldRows,
    Ids,
    OpenFiles,
    Piece,
    StoredRows,
    UnseenRows,
    became_shorter,
    put_together,
    read_rows,
)
from hotdelta.chain.history.verification import unreadable
from hotdelta.errors import DamagedError, ManifestError
from hotdelta.logs import ProgressLog

_OWN_TENSORS = {names.IDENTITY_TENSOR, names.STEP_TENSOR, names.TRAINER_STATE_TENSOR}
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
class _Patch:
    """The rows that one delta has of a variable, and their ids."""

    rows: Place
    ids: Place

    @property
    def size(self) -> int:
        return self.rows.size + self.ids.size


@dataclass(frozen=True, slots=True)
class _History:
    """What all of a variable is read from, and the rows that are written over it then, in order.

    The base may be a delta: what is a table now may have been none when the chain began.
    """

    type: TensorType
    base: Place | None
    base_rows: int
    patches: Sequence[_Patch]
    unseen: UnseenRows


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

    def type_of(self, key: str, *, owner: str = "") -> TensorType | None:
        """Dtype and shape, from the link that holds all of it; None when no link does.

        What grows has the rows of the newest link. `owner`: the table that it is a slot of.
        """
        found = self._stored_type(key)
        growing = self._growing_table(key, owner)
        if found is None or not growing:
            return found
        return TensorType(found.dtype, (self.state.newest.tables[growing].stored_shape[0], *found.shape[1:]))

    def _stored_type(self, key: str) -> TensorType | None:
        """A recompiled optimizer brings its slots in the middle of a chain, whole, in one delta."""
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

    def _growing_table(self, key: str, owner: str) -> str:
        """The key of the growing table whose rows a variable has as well; empty when there is none.

        A slot has as many rows as its table, also in the full: a bias may be named like a slot.
        """
        tables = self.state.newest.tables
        for possible in possible_tables(key, owner=owner):
            if possible in tables:
                is_growing = tables[possible].rows_in_use is not None
                return possible if is_growing and self._has_rows_of(possible, key) else ""
        return ""

    def _has_rows_of(self, table: str, key: str) -> bool:
        if key == table:
            return True
        if self._index.has(key + names.VALUE_SUFFIX):
            return False
        place, record = self._index.place(key, 0), self.state.full.tables.get(table)
        if place is None or record is None:
            return self._index.has(key + names.ROWS_SUFFIX)
        return place.type.shape[:1] == record.stored_shape[:1]

    def newest_tensor(self, name: str) -> Array | None:
        """A tensor of the newest link; None when that does not have it."""
        place = self._index.place(name, self._index.num_links - 1)
        if place is None:
            return None
        with OpenFiles(1) as files:
            return self._read(files, place)

    def value(self, key: str, *, owner: str = "", dtype: Any = None) -> Array:
        """All of a variable, in memory of its own that TensorFlow can take as it is.

        As numpy's dtype of these bits (bfloat16: uint16), or as `dtype`. `owner`: the table that it is a slot of.
        """
        history = self._history(key, owner)
        value = _aligned(history.type, dtype)
        table = value if value.ndim else value.reshape(1)
        count = rows_within(self._limits.chunk_bytes, table.nbytes // max(1, len(table)))
        starts = range(0, len(table), count)
        with ThreadPoolExecutor(_THREADS, "hotdelta-reading") as pool:

            def fill(write: Callable[[Array, int], None]) -> None:
                progress = ProgressLog("reading rows", of=len(table), variable=key)
                written = (pool.map if len(starts) > 1 else map)(
                    lambda at: write(table[at : at + count], at), starts
                )
                for at, _ in zip(starts, written, strict=True):
                    progress.tell(min(at + count, len(table)))

            if history.base is not None:
                with OpenFiles(self._limits.open_files) as files:
                    fill(partial(self._read_rows, files, history.base))
            for pieces in self._batches(self._fold(history, table.dtype, self._is_small)):
                with OpenFiles(self._limits.open_files) as files:
                    fill(partial(self._write_pieces, files, pieces))
        self._require_all(key, history)
        return value

    def slices(
        self, key: str, max_bytes: int, *, owner: str = "", dtype: Any = None
    ) -> Iterator[tuple[int, Array]]:
        """All of a variable, in order, as (first row, some rows): `max_bytes` at most, or one row.

        Each in memory of its own, as `value` has it. A variable without axes comes as row 0.
        """
        history = self._history(key, owner)
        found, base = history.type, history.base
        if not found.shape or not found.size:
            yield 0, self.value(key, owner=owner, dtype=dtype)
            return
        count = rows_within(max_bytes, found.size // found.shape[0])
        starts = range(0, found.shape[0], count)
        pieces = [
            piece.fenced(starts) if isinstance(piece, FiledRows) else piece
            for piece in self._fold(history, _numpy(found, dtype), _Budget(self._limits))
        ]
        self._require_all(key, history)
        with OpenFiles(self._limits.open_files) as files:
            for first in starts:
                shape = (min(count, found.shape[0] - first), *found.shape[1:])
                rows = _aligned(TensorType(found.dtype, shape), dtype)
                if base is not None:
                    self._read_rows(files, base, rows, first)
                self._write_pieces(files, pieces, rows, first)
                yield first, rows

    def changes(self, key: str, *, owner: str = "", dtype: Any = None) -> Iterator[tuple[Ids | None, Array]]:
        """What the deltas change of a variable, in order: rows of ids, which are sorted; or, with None, all of it."""
        history = self._history(key, owner)
        found, base = history.type, history.base
        if base is not None and base.link:
            with OpenFiles(1) as files:
                yield None, self._read(files, base, dtype).reshape(found.shape)
        for piece in self._fold(history, _numpy(found, dtype), lambda _: True):
            if isinstance(piece, HeldRows):
                yield piece.ids, piece.rows
        self._require_all(key, history)

    def stored_rows(self, key: str, *, owner: str = "") -> Iterator[StoredRows]:
        """Where the rows of a variable are, in the order in which they count, for somebody else to read them."""
        history = self._history(key, owner)
        if history.base is not None:
            yield from self._stored(history.base, np.arange(history.base_rows))
        for patch in history.patches:
            with OpenFiles(1) as files:
                ids = self._read(files, patch.ids)
            history.unseen.see(ids)
            yield from self._stored(patch.rows, ids)
        self._require_all(key, history)

    def _history(self, key: str, owner: str) -> _History:
        found = self._require_type(key, owner)
        growing = self._growing_table(key, owner)
        base = self._index.place(key, 0) if growing else self._last_value(key) or self._index.place(key, 0)
        is_fitting = self._is_start(base, found, growing) if growing else _has_size(base, found.size)
        if base is not None and not is_fitting:
            raise self._damaged(base.link, f"{key!r} is {base.type} there, and {found} elsewhere")
        possible = [name for name in possible_ids(key, owner=owner) if self._index.has(name)]
        patches = [
            _Patch(rows, self._find_ids(key, rows, found, possible))
            for rows in self._index.places(key + names.ROWS_SUFFIX)
            if rows.type.shape[0] and (base is None or rows.link > base.link)
        ]
        rows = found.shape[0] if found.shape else 1
        base_rows = (base.type.shape[0] if base is not None else 0) if growing else rows
        return _History(found, base, base_rows, patches, UnseenRows(base_rows, rows))

    def _is_start(self, base: Place | None, found: TensorType, table: str) -> bool:
        """Whether what grew has as many rows in the full as its manifest says, and not more than now."""
        first = self.state.full.tables.get(table)
        if base is None or first is None:
            return False
        expected = TensorType(found.dtype, (first.stored_shape[0], *found.shape[1:]))
        return base.type == expected and expected.shape <= found.shape

    def _require_all(self, key: str, history: _History) -> None:
        """What no link has would be whatever lies in the memory that it is read into."""
        missing = history.unseen.find()
        if missing is not None:
            raise self._damaged(self._index.num_links - 1, f"no link up to it has row {missing} of {key!r}")

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

    def _require_type(self, key: str, owner: str) -> TensorType:
        found = self.type_of(key, owner=owner)
        if found is None:
            raise self._damaged(self._index.num_links - 1, f"no link has all of {key!r}")
        if not found.is_readable:
            raise ManifestError(f"tensor {key!r} is {found.dtype}, which is not read here")
        return found

    def _fold(self, history: _History, dtype: Any, is_small: Callable[[int], bool]) -> Iterator[Piece]:
        """The patches in order: small ones put together in memory, the others left in their files."""
        progress = ProgressLog("reading deltas", of=len(history.patches))
        gathered, size = list[_Patch](), 0
        for done, patch in enumerate(history.patches):
            progress.tell(done)
            is_held = is_small(patch.size)
            if gathered and (not is_held or size >= self._limits.fold_bytes):
                yield self._read_together(gathered, history, dtype)
                gathered, size = [], 0
            if is_held:
                gathered.append(patch)
                size += patch.size
            else:
                yield self._leave(patch, history, dtype)
        if gathered:
            yield self._read_together(gathered, history, dtype)

    def _is_small(self, size: int) -> bool:
        return size < self._limits.small_bytes

    def _batches(self, pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
        """As many at a time as may be held, and as may be open."""
        batch, held = list[Piece](), 0
        for piece in pieces:
            batch.append(piece)
            held += piece.held_bytes
            if held >= self._limits.held_bytes or len(batch) >= self._limits.open_files:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch

    def _leave(self, patch: _Patch, history: _History, dtype: Any) -> Piece:
        with OpenFiles(1) as files:
            ids = self._read_ids(files, patch, history.type)
        if (np.diff(ids) <= 0).any():
            return self._read_together([patch], history, dtype)
        history.unseen.see(ids)
        return FiledRows(patch.rows, patch.ids, ids)

    def _read_together(self, patches: Sequence[_Patch], history: _History, dtype: Any) -> HeldRows:
        """Of each id the last row. The file of each patch is opened once."""
        found = history.type
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
        history.unseen.see(ids)
        return put_together(ids, rows)

    def _read_patch(self, patch: _Patch, ids: Bytes, rows: Bytes) -> None:
        extents = (*patch.ids.extents, *patch.rows.extents)
        if len(extents) > 2 or extents[0].shard != extents[1].shard:
            # Several servers wrote it.
            with OpenFiles(2) as files:
                self._read_rows(files, patch.ids, ids, 0)
                self._read_rows(files, patch.rows, rows, 0)
            return
        path = self._index.shard_path(patch.rows.link, extents[0].shard)
        try:
            descriptor = open_plainly(path)
            try:
                is_whole = read_into(descriptor, ids, extents[0].offset)
                is_whole = is_whole and read_into(descriptor, rows, extents[1].offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unreadable(Path(path), "", error) from error
        if not is_whole:
            raise became_shorter(Path(path))

    def _read_ids(self, files: OpenFiles, patch: _Patch, found: TensorType) -> Ids:
        ids = self._read(files, patch.ids)
        if len(ids) and (ids.min() < 0 or ids.max() >= found.shape[0]):
            raise self._damaged(patch.ids.link, f"it has rows outside {found}")
        return ids

    def _write_pieces(self, files: OpenFiles, pieces: Sequence[Piece], target: Array, first: int) -> None:
        for piece in pieces:
            if isinstance(piece, HeldRows):
                piece.write_to(target, first)
            else:
                self._write_filed(files, piece, target, first)

    def _write_filed(self, files: OpenFiles, piece: FiledRows, target: Array, first: int) -> None:
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

    def _read(self, files: OpenFiles, place: Place, dtype: Any = None) -> Array:
        """All of a tensor."""
        if not place.type.is_readable:
            raise self._damaged(place.link, f"it has {place.type}, which is not read here")
        memory = np.empty(place.type.shape, _numpy(place.type, dtype))
        self._read_rows(files, place, memory if memory.ndim else memory.reshape(1), 0)
        return memory

    def _read_rows(self, files: OpenFiles, place: Place, target: Array, first: int) -> None:
        read_rows(self._index, files, place, target, first)

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


class _Budget:
    """Says yes to what is small until so many bytes are held."""

    def __init__(self, limits: ReadingLimits) -> None:
        self._small_bytes = limits.small_bytes
        self._left = limits.held_bytes

    def __call__(self, size: int) -> bool:
        is_held = size < min(self._small_bytes, self._left)
        self._left -= size if is_held else 0
        return is_held


def _has_size(base: Place | None, size: int) -> bool:
    return base is not None and base.type.size == size


def _numpy(found: TensorType, dtype: Any) -> np.dtype[Any]:
    return stored_dtype(found.dtype) if dtype is None else np.dtype(dtype)


def _aligned(found: TensorType, dtype: Any) -> Array:
    return aligned(found.size).view(_numpy(found, dtype)).reshape(found.shape)

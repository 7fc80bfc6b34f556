"""What a state is read from: files of which few are open at a time, and the rows of deltas, in memory or in a file."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta.chain.bundle.file_bytes import Bytes, open_plainly, read_into
from hotdelta.chain.history.state_index import Place, StateIndex
from hotdelta.chain.history.verification import unreadable
from hotdelta.errors import DamagedError

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


class OpenFiles:
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

    def read(self, path: Path, offset: int, memory: Bytes) -> None:
        """Fills the memory. Raises DamagedError."""
        if not len(memory):
            return
        try:
            descriptor = self._find(path)
            if descriptor is not None:
                is_whole = read_into(descriptor, memory, offset)
            else:
                descriptor = open_plainly(path)
                try:
                    is_whole = read_into(descriptor, memory, offset)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise unreadable(path, "", error) from error
        if not is_whole:
            raise became_shorter(path)

    def _find(self, path: Path) -> int | None:
        with self._guard_opened:
            if path not in self._opened and len(self._opened) < self._most:
                self._opened[path] = open_plainly(path)
                self._stack.callback(os.close, self._opened[path])
            return self._opened.get(path)


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
        with OpenFiles(1) as files:
            files.read(self.path, self.offset, memory)
        return memory.tobytes()


@dataclass(frozen=True, slots=True)
class HeldRows:
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
class FiledRows:
    """Rows in a file, sorted by their ids. Of many such only `fences` are held: how many ids are before each slice."""

    rows_place: Place
    ids_place: Place
    ids: Ids
    fences: Ids | None = None
    slice_rows: int = 0

    @property
    def held_bytes(self) -> int:
        return int(self.ids.nbytes)

    def fenced(self, starts: range) -> FiledRows:
        fences = np.searchsorted(self.ids, [*starts, starts.stop])
        return replace(self, ids=np.empty(0, np.int64), fences=fences, slice_rows=starts.step)

    def between(self, first: int, end: int) -> tuple[int, int]:
        """Which of them have ids from `first` to before `end`."""
        if self.fences is not None:
            at = first // self.slice_rows
            return int(self.fences[at]), int(self.fences[at + 1])
        begin, stop = np.searchsorted(self.ids, [first, end])
        return int(begin), int(stop)


Piece = HeldRows | FiledRows


class UnseenRows:
    """Which rows, of those from `first` to before `end`, no delta has brought so far; in the end none may be left."""

    def __init__(self, first: int, end: int) -> None:
        self._first = first
        self._is_seen = np.zeros(end - first, np.bool_)

    def see(self, ids: Ids) -> None:
        if len(self._is_seen):
            self._is_seen[ids[ids >= self._first] - self._first] = True

    def find(self) -> int | None:
        """The first of them."""
        return None if self._is_seen.all() else self._first + int(self._is_seen.argmin())


def read_rows(index: StateIndex, files: OpenFiles, place: Place, target: Array, first: int) -> None:
    """Fills the target with the rows of a tensor from `first` on. Raises DamagedError."""
    memory = target.reshape(-1).view(np.uint8)
    start = first * (memory.nbytes // max(1, len(target)))
    for extent in place.extents:
        if not len(memory):
            return
        if start < extent.size:
            size = min(len(memory), extent.size - start)
            path, _ = index.file(place.link, extent.shard)
            files.read(path, extent.offset + start, memory[:size])
            memory, start = memory[size:], 0
        else:
            start -= extent.size


def put_together(ids: Ids, rows: Array) -> HeldRows:
    """Of each id the last row."""
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    is_last = np.ones(len(ids), np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=is_last[:-1])
    return HeldRows(ids[is_last], rows[order[is_last]])


def became_shorter(path: Path) -> DamagedError:
    return DamagedError(f"{path} became shorter while it was read", path=path, position="")

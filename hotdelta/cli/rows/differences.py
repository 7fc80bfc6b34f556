"""What differs between two states of a chain, table by table. Reads both in slices, so that any table fits."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hotdelta.chain import KeyTable
from hotdelta.chain.format.key_index import items_of
from hotdelta.chain.history.state_index import TensorType
from hotdelta.chain.history.state_pieces import Array
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.cli.rows.stored_tables import as_floats

_SLICE_BYTES = 16 * 1024 * 1024

Integers = npt.NDArray[np.int64]
OnRead = Callable[[int], None]


@dataclass(frozen=True, slots=True, order=True)
class RowChange:
    """How far a row went, as a Euclidean distance (of NaN: infinite), and how long it is now."""

    distance: float
    row: int
    norm: float


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Of a table with keys: how many there are now, and which came and went; `key_of` names the rows of both states."""

    live: int
    come: Integers
    gone: Integers
    key_of: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """One variable in two states. A table has rows; of any other variable there is one row, the whole of it.

    `rows_new` are those that only the second state has, `rows_gone` those that only the first has.
    """

    key: str
    is_table: bool
    rows: int
    rows_changed: int = 0
    rows_new: int = 0
    rows_gone: int = 0
    largest: tuple[RowChange, ...] = ()
    keys: KeyChange | None = None
    problem: str = ""

    @property
    def is_same(self) -> bool:
        return not (self.rows_changed or self.rows_new or self.rows_gone or self.problem)


def compare(
    key: str, old: StateReader, new: StateReader, *, is_table: bool, top: int, on_read: OnRead
) -> Difference:
    """All of one variable, bit for bit. `on_read` hears the bytes that were read of both."""
    old_type, new_type = old.type_of(key), new.type_of(key)
    if old_type is None or new_type is None:
        return Difference(
            key, is_table, 0, problem="only in the second" if old_type is None else "only in the first"
        )
    if not _is_comparable(old_type, new_type, is_table):
        return Difference(key, is_table, 0, problem=f"{_show(old_type)} became {_show(new_type)}")
    found = _Findings(top)
    first_rows, second_rows = (kind.shape[0] if is_table else 1 for kind in (old_type, new_type))
    for start, before, after in _slices(key, old, new, is_table=is_table):
        shared = min(len(before), len(after))
        found.see(start, before[:shared], after[:shared], new_type.dtype)
        on_read(before.nbytes + after.nbytes)
    return Difference(
        key,
        is_table,
        second_rows,
        rows_changed=found.changed,
        rows_new=max(0, second_rows - first_rows),
        rows_gone=max(0, first_rows - second_rows),
        largest=found.largest,
    )


def compare_keys(table: KeyTable, old: StateReader, new: StateReader) -> KeyChange | None:
    """None when one of the states has no such table."""
    if old.type_of(table.index) is None or new.type_of(table.index) is None:
        return None
    old_keys, old_rows = items_of(old.value(table.index))
    new_keys, new_rows = items_of(new.value(table.index))
    key_of = dict(zip(old_rows.tolist(), old_keys.tolist(), strict=True))
    key_of.update(zip(new_rows.tolist(), new_keys.tolist(), strict=True))
    return KeyChange(
        len(new_keys), np.setdiff1d(new_keys, old_keys), np.setdiff1d(old_keys, new_keys), key_of
    )


@dataclass(slots=True)
class _Findings:
    top: int
    changed: int = 0
    _heap: list[RowChange] = field(default_factory=list)

    @property
    def largest(self) -> tuple[RowChange, ...]:
        return tuple(sorted(self._heap, reverse=True))

    def see(self, start: int, before: Array, after: Array, dtype: str) -> None:
        rows = np.flatnonzero((_bits(before) != _bits(after)).any(axis=1))
        if not len(rows):
            return
        self.changed += len(rows)
        old, new = as_floats(before[rows], dtype), as_floats(after[rows], dtype)
        with np.errstate(all="ignore"):
            distances = np.linalg.norm((new - old).reshape(len(rows), -1), axis=1)
            norms = np.linalg.norm(new.reshape(len(rows), -1), axis=1)
        distances = np.where(np.isnan(distances), np.inf, distances)
        for at in np.argsort(-distances, kind="stable")[: self.top]:
            change = RowChange(float(distances[at]), start + int(rows[at]), float(norms[at]))
            if len(self._heap) < self.top:
                heapq.heappush(self._heap, change)
            else:
                heapq.heappushpop(self._heap, change)


def _slices(
    key: str, old: StateReader, new: StateReader, *, is_table: bool
) -> Iterator[tuple[int, Array, Array]]:
    """(first row, rows before, rows after), until one of the states has no more."""
    if not is_table:
        yield 0, old.value(key)[None], new.value(key)[None]
        return
    pairs = zip(old.slices(key, _SLICE_BYTES), new.slices(key, _SLICE_BYTES), strict=False)
    for (start, before), (_, after) in pairs:
        yield start, before, after


def _bits(rows: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)


def _is_comparable(old: TensorType, new: TensorType, is_table: bool) -> bool:
    if not (old.is_readable and new.is_readable) or old.dtype != new.dtype:
        return False
    return old.shape[1:] == new.shape[1:] if is_table and old.shape and new.shape else old.shape == new.shape


def _show(kind: TensorType) -> str:
    return f"{kind.dtype}{list(kind.shape)}"

"""What became of one key, or of one row, from the oldest full on: commit by commit, each verified before it is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hotdelta.chain import KeyTable, Kind, Manifest, Node, directory_of, verify
from hotdelta.chain.bundle.delta_tensors import ids_tensor
from hotdelta.chain.bundle.reader import BundleRows
from hotdelta.chain.format import names
from hotdelta.chain.format.key_index import PLACES
from hotdelta.chain.history.state_pieces import Array
from hotdelta.cli.history.history import Entry
from hotdelta.cli.history.opened_chain import OpenedChain
from hotdelta.cli.rows.stored_tables import Floats, as_floats
from hotdelta.errors import ChainError

Integers = npt.NDArray[np.int64]


class What(StrEnum):
    """HELD: the full has it; CAME: it got a row; CHANGED: its row was written; MOVED: it got another one; GONE."""

    HELD = "held"
    CAME = "came"
    CHANGED = "changed"
    MOVED = "moved"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Event:
    """What one commit did to it. `distance`: how far its row went from the value before, if there was one."""

    what: What
    manifest: Manifest
    row: int
    value: tuple[float, ...] = ()
    distance: float | None = None

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.value)) if self.value else 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """A full and all deltas that lead from it to the newest state, oldest first."""

    full: Manifest
    deltas: tuple[Manifest, ...]

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        return (self.full, *self.deltas)


def longest_line(entries: Sequence[Entry], newest: Node) -> Line:
    """From the oldest full that leads there without a gap. Raises ChainError when there is none."""
    by_node = {entry.node: entry for entry in entries}
    node: Node | None = newest
    deltas, best = list[Manifest](), None
    while node is not None and node in by_node:
        entry = by_node[node]
        if entry.full is not None:
            best = Line(entry.full, tuple(reversed(deltas)))
        if entry.delta is None:
            break
        deltas.append(entry.delta)
        node = entry.parent
    if best is None:
        raise ChainError(f"no full leads to {newest}", hint="see: hotdelta verify")
    return best


def read_life(
    chain: OpenedChain,
    line: Line,
    follower: _Follower,
    *,
    roles: Collection[str],
    on_read: Callable[[int], None],
) -> Iterator[Event]:
    """`roles`: of the files that are read. Raises DamagedError for a commit that is not what its manifest says."""
    for manifest in line.manifests:
        with chain.files_of((manifest,), roles=roles) as run_dir:
            verify(run_dir, manifest, roles=roles, on_read=on_read)
            directory = directory_of(run_dir, manifest.kind)
            with BundleRows(directory / manifest.prefix) as bundle:
                yield from follower.read(manifest, bundle)


class RowLife:
    """Follows one row of a table."""

    def __init__(self, table: str, row: int, dtype: str) -> None:
        self._table = table
        self._row = row
        self._dtype = dtype
        self._value: Floats | None = None

    def read(self, manifest: Manifest, bundle: BundleRows) -> Iterator[Event]:
        value = self._find(manifest, bundle)
        if value is None:
            return
        known = What.CAME if self._value is None else What.CHANGED
        yield self._told(What.HELD if manifest.kind is Kind.FULL else known, manifest, value)

    def told_when_dealt(self, what: What, manifest: Manifest, bundle: BundleRows) -> Event:
        """The key has just got this row: whatever was in it before was another's."""
        value = self._find(manifest, bundle)
        self._value = None
        return self._told(what, manifest, value) if value is not None else Event(what, manifest, self._row)

    def _told(self, what: What, manifest: Manifest, value: Floats) -> Event:
        with np.errstate(all="ignore"):
            distance = None if self._value is None else float(np.linalg.norm(value - self._value))
        self._value = value
        return Event(what, manifest, self._row, tuple(value.tolist()), distance)

    def _find(self, manifest: Manifest, bundle: BundleRows) -> Floats | None:
        if manifest.kind is Kind.FULL:
            entry = bundle.entries.get(self._table)
            has_row = entry is not None and entry.shape[:1] > (self._row,)
            return self._read(bundle, self._table, self._row) if has_row else None
        at = _place_of(bundle, self._table, self._row)
        return None if at is None else self._read(bundle, self._table + names.ROWS_SUFFIX, at)

    def _read(self, bundle: BundleRows, name: str, at: int) -> Floats:
        rows: Array = bundle.read_rows(name, at, at + 1)
        return as_floats(rows, self._dtype).reshape(-1)


class KeyLife:
    """Follows one key of a table with keys: the bucket that it lies in, and the row that this gives it."""

    def __init__(self, table: KeyTable, key: int, dtype: str) -> None:
        self._table = table
        self._key = key
        self._dtype = dtype
        self._bucket: int | None = None
        self._number = 0
        self._row: RowLife | None = None

    def read(self, manifest: Manifest, bundle: BundleRows) -> Iterator[Event]:
        before, row = self._number, self._row
        self._follow_index(manifest, bundle)
        if self._number == before:
            if self._row is not None:
                yield from self._row.read(manifest, bundle)
        elif self._number:
            self._row = RowLife(self._table.rows, self._number, self._dtype)
            is_first = manifest.kind is Kind.FULL
            what = What.HELD if is_first else What.MOVED if row is not None else What.CAME
            yield self._row.told_when_dealt(what, manifest, bundle)
        else:
            self._row = None
            yield Event(What.GONE, manifest, before)

    def _follow_index(self, manifest: Manifest, bundle: BundleRows) -> None:
        """A delta has the buckets that changed, each whole: one without the key is one that it left."""
        if manifest.kind is Kind.FULL:
            buckets: Integers = bundle.read(self._table.index)
            ids: Integers = np.arange(len(buckets))
        else:
            name = self._table.index + names.ROWS_SUFFIX
            if name not in bundle.entries:
                return
            buckets, ids = bundle.read(name), bundle.read(ids_tensor(bundle.entries, self._table.index))
        at, place = np.nonzero((buckets[:, :PLACES] == self._key) & (buckets[:, PLACES:] != 0))
        if len(at):
            self._bucket, self._number = int(ids[at[0]]), int(buckets[at[0], PLACES + place[0]])
        elif self._bucket in ids:
            self._bucket, self._number = None, 0


_Follower = RowLife | KeyLife


def _place_of(bundle: BundleRows, table: str, row: int) -> int | None:
    """Where a delta has a row, if it has it."""
    name = ids_tensor(bundle.entries, table)
    if name not in bundle.entries or table + names.ROWS_SUFFIX not in bundle.entries:
        return None
    ids: Integers = bundle.read(name)
    found = np.flatnonzero(ids == row)
    return int(found[-1]) if len(found) else None

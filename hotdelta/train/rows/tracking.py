"""The two ways to know which rows of a table changed, behind one interface. Called on the training thread only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.row_memory import differing_rows
from hotdelta.chain.format.manifest import Tracking
from hotdelta.train.model.variables import RowVariable, Table
from hotdelta.train.rows.cut import RowBlock
from hotdelta.train.tables.key_upkeep import BEGINNING, Moment
from hotdelta.train.tables.row_values import Array, Ids, gather_rows, read_slice, read_whole
from hotdelta.train.tables.server_rows import ServerRows
from hotdelta.train.tables.sharded import Shard
from hotdelta.train.tables.touched import AnyTouchedRows


class ChangedRows:
    """The last saved rows of one variable, and which live rows differ from them.

    Owned by the training thread; a full builder may read `remembered` meanwhile, because every row that changes under
    it is in a later delta and is written again from there.
    """

    def __init__(self, variable: tf.Variable, *, is_saved: bool) -> None:
        """`is_saved`: the present value is on disk already; otherwise every row is due."""
        self._variable = variable
        self.remembered: Array = np.array(read_whole(variable), copy=True)
        self._due = np.full(len(self.remembered), not is_saved)

    def take(self) -> tuple[Ids, Array]:
        """The rows that changed since the last take, with what was given back; they count as saved from here on."""
        live = read_whole(self._variable)
        changed = self._due | differing_rows(self.remembered, live)
        ids = np.flatnonzero(changed).astype(np.int64)
        rows = live[ids]
        self.remembered[ids] = rows
        self._due[ids] = False
        return ids, rows

    def give_back(self, ids: Ids) -> None:
        self._due[ids] = True

    def mark_all(self) -> None:
        self._due[:] = True


class TableTracker(Protocol):
    """Knows which rows of one table, and of its slots, changed since the last take."""

    table: Table
    mode: Tracking

    def take(self) -> list[RowBlock]: ...

    def give_back(self, blocks: list[RowBlock]) -> None: ...

    def mark_all(self) -> None:
        """Every row is due, of the slots too."""
        ...

    def count(self) -> int: ...

    def read_slice(self, variable: RowVariable, first: int, count: int) -> Array:
        """Rows for a full; may be called from another thread and be torn by training (see full_builder)."""
        ...

    def shards_on_servers(self, variable: RowVariable, /) -> tuple[Shard, ...]:
        """The shards that parameter servers write into a full; empty when rows are read with `read_slice`."""
        ...


class TouchedTable:
    """One touched set, recorded in the training graph, for a table and its slots.

    `upkeep`: of a table with keys. `moment`: up to where training is, when rows are taken.
    """

    mode = Tracking.TOUCHED

    def __init__(
        self,
        table: Table,
        touched: AnyTouchedRows,
        *,
        unsaved: frozenset[str] = frozenset(),
        moment: Moment = BEGINNING,
    ) -> None:
        """`unsaved`: keys of row variables of which nothing is on disk yet; their first take is every row."""
        self.table = table
        self.touched = touched
        self._unsaved = set(unsaved)
        growth = table.values.growth
        self.upkeep = None if growth is None else growth.upkeep
        self.moment = moment
        # Before the scrub remembers what they hold, and a full reads it.
        self._fill_slots()
        if self.upkeep is not None:
            self.upkeep.begin(moment)

    def take(self) -> list[RowBlock]:
        self._fill_slots()
        ids = self.touched.take()
        if self.upkeep is not None:
            self.upkeep.stamp(ids, self.moment)
        if self.table.key in self._unsaved:
            ids = _all_rows(self.table.values)
        blocks = [self._block(item, ids) for item in self.table.row_variables]
        self._unsaved.clear()
        return blocks

    def _fill_slots(self) -> None:
        if self.table.values.growth is not None:
            self.table.values.growth.fill_now()

    def _block(self, item: RowVariable, ids: Ids) -> RowBlock:
        in_use = None if item.growth is None else item.rows
        if item is self.table.values:
            return RowBlock(item, ids, self._gather(item, ids), rows_in_use=in_use)
        if item.key in self._unsaved and self.table.key not in self._unsaved:
            everything = _all_rows(item)
            return RowBlock(item, everything, self._gather(item, everything), rows_in_use=in_use)
        return RowBlock(item, ids, self._gather(item, ids), shares_ids_of=self.table.key, rows_in_use=in_use)

    def _gather(self, item: RowVariable, ids: Ids) -> Array | ServerRows:
        return gather_rows(item.variable, ids)

    def give_back(self, blocks: list[RowBlock]) -> None:
        for block in blocks:
            if block.variable is self.table.values:
                self.touched.give_back(block.ids)
            elif block.shares_ids_of is None:
                self._unsaved.add(block.variable.key)

    def mark_all(self) -> None:
        self.touched.record_all()

    def count(self) -> int:
        return self.touched.count()

    def read_slice(self, variable: RowVariable, first: int, count: int) -> Array:
        return read_slice(variable.variable, first, count)

    def shards_on_servers(self, _variable: RowVariable, /) -> tuple[Shard, ...]:
        return ()


class ComparedRows(Protocol):
    """Which rows of one variable differ from a remembered copy."""

    def take(self) -> tuple[Ids, Array | ServerRows]: ...

    def give_back(self, ids: Ids) -> None: ...

    def mark_all(self) -> None: ...


Compared = TypeVar("Compared", bound=ComparedRows)


class ComparedTable(Generic[Compared]):
    """A remembered copy of a table and of each slot, compared bit for bit at every take."""

    mode = Tracking.CHANGED

    def __init__(self, table: Table, rows: Mapping[str, Compared]) -> None:
        self.table = table
        self._rows = rows

    def take(self) -> list[RowBlock]:
        return [RowBlock(item, *self._rows[item.key].take()) for item in self.table.row_variables]

    def give_back(self, blocks: list[RowBlock]) -> None:
        for block in blocks:
            self._rows[block.variable.key].give_back(block.ids)

    def mark_all(self) -> None:
        for rows in self._rows.values():
            rows.mark_all()

    def count(self) -> int:
        """Not known without a full comparison."""
        return 0


class ChangedTable(ComparedTable[ChangedRows]):
    """The remembered copies are in this process."""

    def __init__(self, table: Table, *, unsaved: frozenset[str] = frozenset()) -> None:
        super().__init__(
            table,
            {
                item.key: ChangedRows(item.variable, is_saved=item.key not in unsaved)
                for item in table.row_variables
            },
        )

    def read_slice(self, variable: RowVariable, first: int, count: int) -> Array:
        return self._rows[variable.key].remembered[first : first + count]

    def shards_on_servers(self, _variable: RowVariable, /) -> tuple[Shard, ...]:
        return ()


def _all_rows(item: RowVariable) -> Ids:
    return np.arange(item.rows, dtype=np.int64)

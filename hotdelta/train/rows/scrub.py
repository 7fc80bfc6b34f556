"""The guard for writes that nothing recorded: a 64-bit hash of every row, compared a slice at a time with each save.

A row whose hash moved although no one recorded it goes into the delta, late but not never, and is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hotdelta.chain.bundle.row_memory import Hashes, hash_rows, row_ranges
from hotdelta.train.model.variables import Table
from hotdelta.train.rows.cut import Cut, RowBlock, ScrubSlice
from hotdelta.train.rows.tracking import TouchedTable
from hotdelta.train.tables.row_values import Array, Ids, read_slice
from hotdelta.train.tables.server_rows import ServerRows

HASHED_ROWS = 1 << 16


class RowHashes:
    """The hash of each row of one row variable as it was last saved. Owned by the thread that writes deltas."""

    def __init__(self, rows: int) -> None:
        self._hashes: Hashes = np.zeros(rows, np.uint64)

    def remember_slice(self, first: int, rows: Array) -> None:
        self._hashes[first : first + len(rows)] = hash_rows(rows)

    def remember(self, ids: Ids, rows: Array) -> None:
        if len(ids):
            self._make_room(int(ids[-1]) + 1)
        self._hashes[ids] = hash_rows(rows)

    def moved(self, first: int, rows: Array) -> Ids:
        """Ids of rows in the slice that are not as they were last saved."""
        self._make_room(first + len(rows))
        differs = self._hashes[first : first + len(rows)] != hash_rows(rows)
        return np.flatnonzero(differs).astype(np.int64) + first

    def _make_room(self, rows: int) -> None:
        """A table may have grown."""
        if rows > len(self._hashes):
            more = np.zeros(2 * rows - len(self._hashes), np.uint64)
            self._hashes = np.concatenate([self._hashes, more])


class Scrub:
    """Row hashes of every *touched* table and of its slots, and whose turn it is to be checked.

    `next_slices` belongs to the training thread, `complete` and `remember` to the thread that writes deltas.
    """

    def __init__(self, tables: Sequence[TouchedTable], *, every_saves: int) -> None:
        """What the tables hold now is what is on disk, or will be written whole."""
        self._every_saves = every_saves
        self._turn = 0
        self._tables = {tracker.table.key: tracker.table for tracker in tables} if every_saves else {}
        self._hashes: dict[str, RowHashes] = {}
        for tracker in tables if every_saves else ():
            for item in tracker.table.row_variables:
                self._hashes[item.key] = RowHashes(item.rows)
                for first, end in row_ranges(item.rows, HASHED_ROWS):
                    self._hashes[item.key].remember_slice(first, tracker.read_slice(item, first, end - first))

    def forget(self, table: Table) -> None:
        """Stop checking a table that is compared from now on: comparing finds everything."""
        self._tables.pop(table.key, None)
        for item in table.row_variables:
            self._hashes.pop(item.key, None)

    def next_slices(self, blocks: Sequence[RowBlock]) -> tuple[ScrubSlice, ...]:
        """Rows to check with this cut; within `every_saves` cuts every row has its turn.

        Only of variables that share one set of ids: what has ids of its own was just taken whole.
        """
        if not self._every_saves:
            return ()
        turn, self._turn = self._turn % self._every_saves, self._turn + 1
        slices = []
        for block in blocks:
            table = self._tables.get(block.shares_ids_of or block.variable.key)
            rows = 0 if table is None else table.rows
            first, end = rows * turn // self._every_saves, rows * (turn + 1) // self._every_saves
            if end > first:
                values = read_slice(block.variable.variable, first, end - first)
                slices.append(ScrubSlice(block.variable, first, values))
        return tuple(slices)

    def repeat_turn(self) -> None:
        """The slices of the last turn were not used."""
        self._turn -= 1

    def remember(self, cut: Cut) -> None:
        """Remember the rows of a cut that was committed: they are what is on disk now."""
        for block in cut.blocks:
            hashes = self._hashes.get(block.variable.key)
            if hashes is not None and len(block.ids) and not isinstance(block.rows, ServerRows):
                hashes.remember(block.ids, block.rows)

    def complete(self, cut: Cut) -> tuple[Cut, dict[str, int]]:
        """The cut with the rows of its scrub slices that moved unrecorded, and how many of each table."""
        missed = self._missed_ids(cut)
        if not missed:
            return cut, {}
        slices = {part.variable.key: part for part in cut.scrub}
        blocks = tuple(_extended(block, missed, slices) for block in cut.blocks)
        return replace(cut, blocks=blocks), {table: len(ids) for table, ids in missed.items()}

    def _missed_ids(self, cut: Cut) -> dict[str, Ids]:
        """By table: a row that moved in the table or in any slot, and is not in the cut."""
        recorded = {block.variable.key: block.ids for block in cut.blocks if block.shares_ids_of is None}
        table_of = {block.variable.key: block.shares_ids_of or block.variable.key for block in cut.blocks}
        missed: dict[str, Ids] = {}
        for part in cut.scrub:
            table = table_of[part.variable.key]
            hashes = self._hashes.get(part.variable.key)
            if hashes is None:
                continue
            moved = hashes.moved(part.first, part.rows)
            # Sorted, so those of the slice lie side by side: all of them would be sorted once more, at every save.
            first, end = np.searchsorted(recorded[table], (part.first, part.first + len(part.rows)))
            found = np.setdiff1d(moved, recorded[table][first:end], assume_unique=True)
            if len(found):
                missed[table] = np.union1d(missed.get(table, found), found)
        return missed


def _extended(block: RowBlock, missed: dict[str, Ids], slices: dict[str, ScrubSlice]) -> RowBlock:
    extra = missed.get(block.shares_ids_of or block.variable.key)
    part = slices.get(block.variable.key)
    if extra is None or part is None or isinstance(block.rows, ServerRows):
        return block
    ids = np.concatenate([block.ids, extra])
    rows = np.concatenate([block.rows, part.rows[extra - part.first]])
    order = np.argsort(ids, kind="stable")
    return replace(block, ids=ids[order], rows=rows[order])

"""What changed since the last cut, read through a Session: touched rows, compared rows, values that moved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.format.manifest import Manifest, TableRecord
from hotdelta.compat.v1.chain.keyed_cuts import KeyedCuts
from hotdelta.compat.v1.chain.moved_values import MovedValues
from hotdelta.compat.v1.chain.session_progress import Place, PlaceReader
from hotdelta.compat.v1.graph.served_variables import shares_ids
from hotdelta.compat.v1.graph.session_values import Feeds, join
from hotdelta.compat.v1.recording.training_graph import GraphTable, TrainingGraph, table_records
from hotdelta.train.rows.cut import Cut, RowBlock
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.chain_writer import ChainWriter
from hotdelta.train.tables.key_upkeep import KeyState, Moment
from hotdelta.train.tables.row_values import Array, Ids, row_bytes


class SessionCuts:
    """Takes cuts of one training. Any number of workers may train meanwhile: no update is in neither delta.

    Workers write a row, then set its flag. A cut reads the flags, clears exactly those that it read as set, and then
    gathers the rows: each in a Session call of its own, because that is what orders them.
    """

    def __init__(self, graph: TrainingGraph, saved: Mapping[str, Array], rows: Mapping[str, Array]) -> None:
        """`saved`: what is on disk of every value; `rows`: of every row variable that is compared."""
        self._graph = graph
        self.keyed = KeyedCuts(graph)
        self._values = MovedValues(saved)
        self._remembered = {key: np.array(value) for key, value in rows.items()}
        # Rows that were given back: they are due, changed or not.
        self._due = {key: np.zeros(len(value), bool) for key, value in self._remembered.items()}

    def begin(self, now: Moment) -> Mapping[str, KeyState]:
        """A chain goes on with what the Session holds."""
        return self.keyed.begin(now)

    def begin_chain(self, session: Any, now: Moment) -> Mapping[str, KeyState]:  # noqa: ARG002 - for ShardCuts
        """A chain begins with what the Session holds. Returns what its full says of keys."""
        return self.keyed.begin(now)

    def take(self, session: Any, places: PlaceReader, *, trained_at: float) -> Cut:
        with self.keyed.unchanged():
            return self._take(session, places, trained_at)

    # All rows of a full are read between the same two steps.
    take_for_full = take

    def _take(self, session: Any, places: PlaceReader, trained_at: float) -> Cut:
        touched = self._take_flags(session)
        taken = _Taken(touched, {}, {})
        try:
            self._stamp(session, touched, places)
            blocks, values, place = self._read(session, taken, places)
        except BaseException:
            for due in self._due.values():
                due[:] = True
            self._values.give_back_all()
            # A Session that is gone takes its flags along, and a new one starts from what is committed.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                self._give_back(session, taken)
            raise
        return Cut(
            step=place.step,
            blocks=tuple(blocks),
            values=values,
            trainer_state=place.trainer_state,
            watermark=place.watermark,
            trained_at=trained_at,
            keys=self.keyed.states(),
        )

    def give_back(self, session: Any, cut: Cut) -> None:
        """The cut was not committed: what it took is due again."""
        flagged = {table.key: table for table in self._graph.tables if table.flags is not None}
        touched = {block.variable.key: block.ids for block in cut.blocks if block.variable.key in flagged}
        compared = {
            block.variable.key: block.ids for block in cut.blocks if block.variable.key in self._remembered
        }
        self._give_back(session, _Taken(touched, compared, cut.values))

    def commit(
        self,
        chain: ChainWriter,
        session: Any,  # noqa: ARG002 - for ShardCuts, whose rows are not in the cut
        cut: Cut,
        link: Link,
    ) -> Manifest:
        """Raises CommitError."""
        variables = self._graph.variables
        return chain.commit_delta(
            cut, link, others=variables.others, schema=variables.schema.digest, tables=self.records(cut)
        )

    def records(self, cut: Cut) -> dict[str, TableRecord]:
        blocks = {block.variable.key: block for block in cut.blocks}
        rows = {key: len(block.ids) for key, block in blocks.items()}
        # As it was when the cut was taken: by now steps may have taken more rows.
        in_use = {key: block.rows_in_use for key, block in blocks.items() if block.rows_in_use is not None}
        return table_records(self._graph.tables, rows, in_use=in_use, keys=cut.keys)

    def _stamp(self, session: Any, touched: Mapping[str, Ids], places: PlaceReader) -> None:
        """Policies ask when rows were trained; it is saved with them."""
        keyed = [table for table in self._graph.keyed if table.usage is not None]
        if not keyed:
            return
        place = places.read(session.run(places.fetches))
        for table in keyed:
            table.upkeep.stamp(touched[table.name], Moment.of(place.step, place.watermark))

    def _take_flags(self, session: Any) -> dict[str, Ids]:
        flagged = [table for table in self._graph.tables if table.flags is not None]
        fetched = session.run(
            {table.key: [part.touched_ids for part in table.flags or ()] for table in flagged}
        )
        feeds: Feeds = {}
        clear = []
        touched: dict[str, Ids] = {}
        for table in flagged:
            parts = zip(table.flags or (), table.saved.parts, fetched[table.key], strict=True)
            ids = []
            for flags, part, local in parts:
                feeds[flags.ids] = local
                clear.append(flags.clear)
                ids.append(local + part.first_row)
            touched[table.key] = np.concatenate(ids)
        session.run(clear, feeds)
        return touched

    def _read(
        self, session: Any, taken: _Taken, places: PlaceReader
    ) -> tuple[list[RowBlock], dict[str, Array], Place]:
        fetches: dict[str, Any] = {}
        feeds: Feeds = {}
        for table in self._graph.tables:
            if table.flags is not None:
                for key, rows in table.rows.items():
                    fetches[key], row_feeds = rows.gather(taken.touched[table.key])
                    feeds.update(row_feeds)
        fetched, values, place = session.run(
            [fetches, dict(self._graph.values.fetches), places.fetches], feeds
        )
        blocks: list[RowBlock] = []
        for table in self._graph.tables:
            blocks.extend(
                self._compared(session, table) if table.flags is None else _touched(table, taken, fetched)
            )
        return blocks, self._values.take(self._graph.values.join(values)), places.read(place)

    def _compared(self, session: Any, table: GraphTable) -> Iterator[RowBlock]:
        for item in table.table.row_variables:
            remembered, due = self._remembered[item.key], self._due[item.key]
            found = [(np.empty(0, np.int64), np.empty((0, *item.shape[1:]), remembered.dtype))]
            for first, rows in table.rows[item.key].read_chunks(session):
                chunk = slice(first, first + len(rows))
                differs = _differs(remembered[chunk], rows) | due[chunk]
                found.append((np.flatnonzero(differs) + first, rows[differs]))
            ids = np.concatenate([part[0] for part in found])
            changed = np.concatenate([part[1] for part in found])
            remembered[ids] = changed
            due[:] = False
            yield RowBlock(item, ids, changed)

    def _give_back(self, session: Any, taken: _Taken) -> None:
        self._values.give_back(taken.values)
        for key, rows in taken.compared.items():
            self._due[key][rows] = True
        feeds: Feeds = {}
        operations = []
        for table in self._graph.tables:
            ids = taken.touched.get(table.key)
            for flags, part in zip(table.flags or (), table.saved.parts, strict=bool(table.flags)):
                if ids is not None:
                    inside = ids[(ids >= part.first_row) & (ids < part.first_row + part.rows)]
                    feeds[flags.ids] = inside - part.first_row
                    operations.append(flags.give_back)
        session.run(operations, feeds)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a cut has taken away from the sets, to be given back when it fails."""

    touched: Mapping[str, Ids]
    compared: Mapping[str, Ids]
    values: Mapping[str, Array]


def _touched(table: GraphTable, taken: _Taken, fetched: Mapping[str, list[Array]]) -> Iterator[RowBlock]:
    ids = taken.touched[table.key]
    growth = table.saved.growth
    rows_in_use = None if growth is None else growth.in_use()
    for item in table.table.row_variables:
        rows = join(fetched[item.key], table.rows[item.key].saved)
        shares = item is not table.table.values and (growth is not None or shares_ids(item.key, table.key))
        yield RowBlock(item, ids, rows, table.key if shares else None, rows_in_use)


def _differs(old: Array, new: Array) -> npt.NDArray[np.bool_]:
    """By bit pattern: NaN equals itself, and -0.0 is not 0.0."""
    return np.asarray((row_bytes(old) != row_bytes(new)).any(axis=1))

"""All trackers of a model together: one cut across every table and every other variable, taken at one moment."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import tensorflow as tf

from hotdelta.chain.format.manifest import TableRecord, Tracking
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from hotdelta.train.model.variables import ModelVariables, Table
from hotdelta.train.rows.cut import Cut, RowBlock
from hotdelta.train.rows.other_values import OtherValues
from hotdelta.train.rows.outside_writes import OutsideWrites, functions_that_told
from hotdelta.train.rows.scrub import Scrub
from hotdelta.train.rows.server_tables import ServerChangedTable, ServerTouchedTable
from hotdelta.train.rows.trace_check import inspect_trace
from hotdelta.train.rows.tracking import ChangedTable, TableTracker, TouchedTable
from hotdelta.train.tables.key_upkeep import BEGINNING, KeyState, Moment
from hotdelta.train.tables.replicas import refuse_differing
from hotdelta.train.tables.row_values import Array
from hotdelta.train.tables.sharded import ShardedTouchedRows, parts_of
from hotdelta.train.tables.touched import AnyTouchedRows, GrowingTouchedRows

logger = logging.getLogger(__name__)

NOTHING: frozenset[str] = frozenset()


class Trackers:
    """Which rows and values changed since the last cut. Every method is called with the lock of the saver held."""

    def __init__(
        self,
        variables: ModelVariables,
        *,
        touched: Mapping[str, AnyTouchedRows],
        demanded: frozenset[str] = NOTHING,
        unsaved: frozenset[str] = NOTHING,
        on_servers: frozenset[str] = NOTHING,
        scrub_saves: int = 0,
        moment: Moment = BEGINNING,
    ) -> None:
        """`touched` has a recorder for each table that training records; the others are compared.

        `demanded`: tables that the user wants *touched*, so that falling back is an error. `unsaved`: keys of which
        nothing, or nothing that is still true, is on disk. `on_servers`: tables whose rows parameter servers write.
        `scrub_saves`: see WriterOptions; rows on servers are not checked, they would have to be read here.
        `moment`: up to where training is.
        """
        self.variables = variables
        self._demanded = demanded
        self._on_servers = on_servers
        self._moment = moment
        self._outside = OutsideWrites()
        self._told_others: weakref.WeakSet[Any] = weakref.WeakSet()
        self.others = OtherValues(variables.others, unsaved=unsaved)
        self.tables: dict[str, TableTracker] = {}
        for table in variables.tables:
            recorder = touched.get(table.key)
            self.tables[table.key] = (
                self._compared_table(table, unsaved)
                if recorder is None
                else self._touched_table(table, recorder, unsaved)
            )
        scrubbed = [tracker for tracker in self.touched_tables() if tracker.table.key not in on_servers]
        self._with_upkeep = [
            (tracker.table.key, tracker.upkeep)
            for tracker in self.touched_tables()
            if tracker.upkeep is not None
        ]
        self.scrub = Scrub(scrubbed, every_saves=scrub_saves)

    def _compared_table(self, table: Table, unsaved: frozenset[str]) -> TableTracker:
        is_on_servers = table.key in self._on_servers
        return (ServerChangedTable if is_on_servers else ChangedTable)(table, unsaved=unsaved)

    def _touched_table(self, table: Table, recorder: AnyTouchedRows, unsaved: frozenset[str]) -> TouchedTable:
        if isinstance(recorder, GrowingTouchedRows):
            recorder.fit()
        for variable, part in _recorded_parts(table, recorder):
            self._told_others.update(functions_that_told(variable))
            self._outside.watch(variable, part.record_all, part.record)
        is_on_servers = table.key in self._on_servers
        kind = ServerTouchedTable if is_on_servers else TouchedTable
        return kind(table, recorder, unsaved=unsaved, moment=self._moment)

    def stop(self) -> None:
        self._outside.stop()

    def cut(self, *, step: int, trainer_state: bytes, watermark: float | None, trained_at: float) -> Cut:
        """Take everything that changed, and read the rows whose turn it is to be checked."""
        self._tell_moment(step, watermark)
        try:
            with ExitStack() as unchanged:
                for _, upkeep in self._with_upkeep:
                    unchanged.enter_context(upkeep.lock)
                return self._cut(step, trainer_state, watermark, trained_at)
        except BaseException:
            # Ctrl-C between two tables: what the first gave away would be in no delta.
            self.mark_all()
            raise

    def _cut(self, step: int, trainer_state: bytes, watermark: float | None, trained_at: float) -> Cut:
        cut = Cut(
            step=step,
            blocks=tuple(block for tracker in self.tables.values() for block in tracker.take()),
            values=self.others.take(),
            trainer_state=trainer_state,
            watermark=watermark,
            trained_at=trained_at,
            keys={key: upkeep.cut() for key, upkeep in self._with_upkeep},
        )
        # An empty cut is not written: it must not use up the turn of the rows that would be checked with it.
        return cut if cut.is_empty else replace(cut, scrub=self.scrub.next_slices(cut.blocks))

    def give_back(self, cut: Cut) -> None:
        """The cut was not committed: what it took is due again."""
        for tracker in self.tables.values():
            keys = {item.key for item in tracker.table.row_variables}
            tracker.give_back([block for block in cut.blocks if block.variable.key in keys])
        self.others.give_back(cut.values)

    def note_committed(self, cut: Cut) -> None:
        """By the thread that wrote it."""
        for key, upkeep in self._with_upkeep:
            if key in cut.keys:
                upkeep.note_committed(cut.keys[key])

    @property
    def is_sweep_due(self) -> bool:
        """Asked after every step."""
        return any(upkeep.is_sweep_due for _, upkeep in self._with_upkeep)

    def sweep(self, *, step: int, watermark: float | None) -> None:
        """On the training thread, between two steps: remove the keys whose time has come."""
        for _, upkeep in self._with_upkeep:
            if upkeep.is_sweep_due:
                upkeep.sweep(Moment.of(step, watermark))

    def _tell_moment(self, step: int, watermark: float | None) -> None:
        for tracker in self.touched_tables():
            tracker.moment = Moment.of(step, watermark)

    def undo(self, cut: Cut) -> None:
        """The cut that was taken last is no moment between two steps: it will not be written."""
        self.give_back(cut)
        if cut.scrub:
            self.scrub.repeat_turn()

    def mark_all(self) -> None:
        """Make everything due: nobody knows what was taken and what was not."""
        self.others.mark_all()
        for tracker in self.tables.values():
            tracker.mark_all()

    def snapshot(self) -> Mapping[str, Array]:
        return self.others.snapshot()

    def touched_rows(self) -> int:
        return sum(tracker.count() for tracker in self.tables.values())

    def known_rows(self) -> int:
        """How many rows are known in this process to be due. Asks no parameter server."""
        local = (each for each in self.touched_tables() if not isinstance(each.touched, ShardedTouchedRows))
        return sum(tracker.count() for tracker in local)

    def records(self, cut: Cut) -> dict[str, TableRecord]:
        """What the manifest says about each table."""
        blocks = {block.variable.key: block for block in cut.blocks}
        return {key: _record(tracker, blocks[key], cut.keys.get(key)) for key, tracker in self.tables.items()}

    def touched_tables(self) -> list[TouchedTable]:
        return [tracker for tracker in self.tables.values() if isinstance(tracker, TouchedTable)]

    def keys_on_servers(self) -> frozenset[str]:
        """The row variables of which parameter servers write the rows."""
        tables = [table for table in self.variables.tables if table.key in self._on_servers]
        return frozenset(item.key for table in tables for item in table.row_variables)

    def check_recorders(self) -> None:
        """Compare the tables whose rows the optimizer, or an older trace, records for another checkpoint now."""
        reason = "another checkpoint has its rows recorded now"
        abandoned = [tracker for tracker in self.touched_tables() if tracker.touched.is_abandoned]
        self._fall_back([(tracker, reason) for tracker in abandoned])
        if self._told_others:
            gc.collect()  # a function that was thrown away writes no more
            for graph in list(self._told_others):
                self.check_trace(graph)
            self._told_others.clear()

    def check_trace(self, graph: Any) -> None:
        """Prove that this trace records every write, table by table; compare the tables for which it does not."""
        reasons = ((tracker, _unrecorded_writer(graph, tracker)) for tracker in self.touched_tables())
        self._fall_back([(tracker, reason) for tracker, reason in reasons if reason is not None])

    def check_replicas(self) -> None:
        """Raises ConfigurationError when a variable has other values on one device than on another.

        Tables are not compared: every replica writes them with the one gradient that all share.
        """
        refuse_differing((item.key, item.variable) for item in self.variables.others)

    def _fall_back(self, unrecorded: Sequence[tuple[TouchedTable, str]]) -> None:
        for tracker, reason in unrecorded:
            table = tracker.table
            if table.key in self._demanded:
                raise ConfigurationError(
                    f"table {table.key!r} cannot be tracked as touched: {reason}",
                    hint="leave its tracking to hotdelta, or take out what writes to rows that no gradient names",
                )
            unsaved = frozenset(item.key for item in table.row_variables)
            self.tables[table.key] = self._compared_table(table, unsaved)
            self.scrub.forget(table)
        warn_of_comparing([(tracker.table, reason) for tracker, reason in unrecorded])


ROW_WISE_KERAS = (
    "use hotdelta.keras.Embedding with an optimizer of hotdelta.keras, without options that write every row"
)


MOST_REASONS = 3


def warn_of_comparing(compared: Sequence[tuple[Table, str]], *, remedy: str = ROW_WISE_KERAS) -> None:
    """Say once, at the start and for all tables, what *changed* tracking costs, why, and what to do about it."""
    if not compared:
        return
    megabytes = sum(item.nbytes for table, _ in compared for item in table.row_variables) / 1e6
    reasons = list(dict.fromkeys(reason for _, reason in compared))
    event(
        logger,
        logging.WARNING,
        "tables are compared row by row at every save",
        tables=", ".join(table.key for table, _ in compared),
        tracking=Tracking.CHANGED,
        reason="; ".join([*reasons[:MOST_REASONS], *(["..."] if len(reasons) > MOST_REASONS else [])]),
        compared_megabytes=round(megabytes, 1),
        remedy=remedy,
    )


def _record(tracker: TableTracker, block: RowBlock, keys: KeyState | None) -> TableRecord:
    values = tracker.table.values
    return TableRecord(
        values.shape,
        values.dtype,
        tracker.mode,
        rows_changed=len(block.ids),
        rows_deleted=0 if keys is None else len(keys.deleted),
        rows_in_use=block.rows_in_use,
        keys_live=None if keys is None else keys.live,
        keys_new=None if keys is None else keys.new,
    )


def _recorded_parts(table: Table, recorder: AnyTouchedRows) -> Iterator[tuple[tf.Variable, AnyTouchedRows]]:
    """Every variable that can be written to, with what records its rows: of a sharded table, each shard."""
    parts = recorder.parts if isinstance(recorder, ShardedTouchedRows) else (recorder,)
    for item in table.row_variables:
        yield from zip(parts_of(item.variable), parts, strict=True)


def _variables_by_key(table: Table) -> dict[str, tf.Variable]:
    """What a graph can write to: of a sharded variable, each shard."""
    watched = {}
    for item in table.row_variables:
        for number, variable in enumerate(parts_of(item.variable)):
            watched[item.key if number == 0 else f"{item.key} (shard {number})"] = variable
    return watched


def _unrecorded_writer(graph: Any, tracker: TouchedTable) -> str | None:
    """Why this trace may write rows that the touched set does not learn of; None when it cannot."""
    watched = _variables_by_key(tracker.table)
    recorder = {f"recorder {index}": variable for index, variable in enumerate(tracker.touched.variables)}
    use = inspect_trace(graph, {**watched, **recorder})
    for key in watched:
        if key in use.other_writers:
            return f"{', '.join(sorted(use.other_writers[key]))} writes all rows of {key}"
    is_written = any(key in use.row_writers for key in watched)
    is_recorded = any(key in use.row_writers or key in use.other_writers for key in recorder)
    if is_written and not is_recorded:
        return "the training function was traced without the recorder"
    return None

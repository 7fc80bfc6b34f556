"""What a graph needs for incremental checkpoints: its tables, their recorders, and the operations to read and write.

Built once, when the scaffold is finalized: every operation of the user is there, and the graph is still open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from hotdelta.chain.format.manifest import TableRecord, Tracking
from hotdelta.chain.format.position import Node
from hotdelta.compat.v1.embedding.table import EmbeddingTable
from hotdelta.compat.v1.embedding.touched import flags_of
from hotdelta.compat.v1.embedding.variable import EmbeddingVariable
from hotdelta.compat.v1.graph.growth import refuse_new_variables, refuse_new_writers
from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable, is_remote
from hotdelta.compat.v1.graph.session_values import RowOperations, ValueOperations
from hotdelta.compat.v1.graph.writers import find_uses, is_apart_from_steps
from hotdelta.compat.v1.recording.full_bundle import FullBundleOperations
from hotdelta.compat.v1.recording.layout import GraphLayout, TableLayout, find_layout
from hotdelta.compat.v1.recording.recorder import (
    SCOPE,
    PartFlags,
    add_recorder,
    flags_of_table,
    make_flags,
    mark_when_assigned,
    refusal,
)
from hotdelta.compat.v1.recording.roll import RecordingRoll
from hotdelta.compat.v1.recording.shard_delta import ShardDelta, ShardMember
from hotdelta.compat.v1.recording.step_marks import StepMarks, bookmark_of
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import unfinalize
from hotdelta.train.model.variables import ModelVariables, Table
from hotdelta.train.rows.trackers import warn_of_comparing
from hotdelta.train.tables.key_upkeep import KeyState

_REMEDY = (
    "train it with an optimizer that writes only the rows of a batch (not tf.train.AdamOptimizer), outside of tf.cond, "
    "and without a regularizer or a moving average of it"
)


@dataclass(frozen=True, slots=True, eq=False)
class GraphTable:
    """A table with its slots: how its rows are read and written, and which of them were touched (None: compared).

    `set_up`: for each part the operations that give all of its rows, or of those of a slot, a value.
    """

    table: Table
    rows: Mapping[str, RowOperations]
    flags: tuple[PartFlags, ...] | None
    strategy: str
    set_up: tuple[tuple[Any, ...], ...]

    @property
    def key(self) -> str:
        return self.table.key

    @property
    def saved(self) -> SavedVariable:
        return self.rows[self.key].saved

    @property
    def tracking(self) -> Tracking:
        return Tracking.CHANGED if self.flags is None else Tracking.TOUCHED


@dataclass(slots=True, eq=False)
class TrainingGraph:
    """`restored` is the node that the newest restore of a Session of this graph put it to.

    `all_touched` marks every row of the tables that record. `shards`: how parameter servers write their own rows; None
    when one process has all of them. `roll`: who else trains; None when no other process could. `marks`: when runs
    begin to write; None where that is not known.
    """

    variables: ModelVariables
    tables: tuple[GraphTable, ...]
    values: ValueOperations
    full: FullBundleOperations
    markers: tuple[tf.Variable, ...]
    all_touched: tf.Operation
    recorders: dict[str, tf.Operation]
    shards: ShardDelta | None
    roll: RecordingRoll | None
    keyed: tuple[EmbeddingTable, ...] = ()
    restored: Node | None = field(default=None)
    is_watched: bool = False
    marks: StepMarks | None = None

    @property
    def own_variables(self) -> list[tf.Variable]:
        """What has to be initialized before training, beside the user's variables."""
        return [*(flags.variable for flags in self._flags if flags.of_table is None), *self.markers]

    @property
    def recorded_keys(self) -> list[str]:
        """Of all variables that are not compared, so that each of their writers needs a recorder."""
        return [key for table in self.tables if table.flags is not None for key in table.rows]

    @property
    def flag_initializers(self) -> list[tf.Operation]:
        """No row is touched."""
        return [flags.reset for flags in self._flags]

    @property
    def _flags(self) -> list[PartFlags]:
        recorded = [flags for table in self.tables for flags in table.flags or ()]
        return [*recorded, *(self.shards.flags if self.shards else ())]

    @property
    def resets_of_keyed(self) -> list[tf.Operation]:
        return [flags.reset for flags in self._flags if flags.of_table is not None]

    def reach_in(self, session: Any) -> None:
        """The tables with keys find their values in this Session from now on.

        Raises ConfigurationError while a chain saves those of another one.
        """
        for table in self.keyed:
            table.reach_in(session)

    def note_trained(self, *, is_trained: bool) -> None:
        """Whether a chain saves what that Session trains."""
        for table in self.keyed:
            table.is_trained = is_trained

    def has_values_on_servers(self, session: Any) -> bool:
        """Whether workers may be training tables with keys before this Session has given them values."""
        return any(session.run([table.has_values for table in self.keyed if table.is_on_server]))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other worker looks keys up, or inserts any, in the tables that are on servers. Not twice at once."""
        tables = [table for table in self.keyed if table.is_on_server]
        if not tables:
            yield
            return
        go_on, stop = [table.let_others_go_on for table in tables], [table.stop_others for table in tables]
        run = tables[0].run
        # One that was lost may have stopped them.
        run(go_on)
        try:
            run(stop)
            yield
        finally:
            for table in tables:
                table.forget()
            with suppress(tf.errors.OpError, RuntimeError):
                run(go_on)

    def ask_servers(self) -> None:
        """While alone: all small questions about tables with keys in one call, after their slots have begun."""
        tables = [table for table in self.keyed if table.is_on_server]
        if tables:
            tables[0].run([table.fills for table in tables])
            answers = tables[0].run([table.questions for table in tables])
            for table, found in zip(tables, answers, strict=True):
                table.remember(found)

    def begin_recording(self, session: Any) -> None:
        """Before everything is restored, or saved: from now on no write may be missed."""
        if self.roll is not None:
            self.roll.begin(session)

    def end_recording(self, session: Any) -> None:
        """After the last save: others may train without recorders now."""
        if self.roll is not None:
            self.roll.deny(session)

    def mark_unrecorded(self, session: Any) -> bool:
        """All rows are due when somebody may have written without recording since this was last asked: whether so."""
        is_unrecorded = self.roll is not None and self.roll.has_unrecorded(session)
        if is_unrecorded:
            session.run(self.all_touched)
        return is_unrecorded

    @property
    def marker_initializers(self) -> list[tf.Operation]:
        return [marker.initializer for marker in self.markers]


def table_records(
    tables: Sequence[GraphTable],
    rows: Mapping[str, int],
    *,
    in_use: Mapping[str, int] | None = None,
    keys: Mapping[str, KeyState] | None = None,
) -> dict[str, TableRecord]:
    """What a manifest says about the tables, of which so many rows changed. `in_use`: of those that grow, if known."""
    used = dict(in_use or {})
    for table in tables:
        if table.saved.growth is not None and table.key not in used:
            used[table.key] = table.saved.growth.in_use()
    return {
        table.key: _record(table, rows.get(table.key, 0), used.get(table.key), (keys or {}).get(table.key))
        for table in tables
    }


def _record(
    table: GraphTable, rows_changed: int, rows_in_use: int | None, keys: KeyState | None
) -> TableRecord:
    values = table.table.values
    return TableRecord(
        values.shape,
        values.dtype,
        table.tracking,
        rows_changed,
        rows_deleted=0 if keys is None else len(keys.deleted),
        rows_in_use=rows_in_use,
        keys_live=None if keys is None else keys.live,
        keys_new=None if keys is None else keys.new,
        part_rows=table.saved.part_rows,
        strategy=table.strategy if table.saved.part_rows else "",
    )


# Of a graph: a dictionary would keep every graph, because what it holds refers to the graph.
_ATTRIBUTE = "_hotdelta_training_graph"


def training_graph_of(graph: Any) -> TrainingGraph | None:
    return getattr(graph, _ATTRIBUTE, None)


@contextmanager
def unfinalized(graph: Any) -> Iterator[None]:
    """A graph may be finalized, and needs operations of ours all the same."""
    is_finalized = graph.finalized
    if is_finalized:
        unfinalize(graph)
    try:
        yield
    finally:
        if is_finalized:
            graph.finalize()


def prepare_graph(saved: Sequence[SavedVariable], *, is_seen: bool = False) -> TrainingGraph:
    """Add recorders and operations to the default graph; the second call for a graph returns the first's answer.

    `is_seen`: a Session that is to be saved has run. It would never run recorders, so its tables are compared. Raises
    ConfigurationError when the graph has grown meanwhile by what that answer would miss.
    """
    graph = tf.compat.v1.get_default_graph()
    layout = find_layout(saved)
    keyed = _keyed_tables(saved)
    known = training_graph_of(graph)
    if known is not None:
        refuse_new_variables(saved, known.variables)
        refuse_new_writers(layout.writers(known.recorded_keys) - known.recorders.keys())
        return known
    variables = layout.variables
    recorders: dict[str, tf.Operation] = {}
    with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(SCOPE):
        for keyed_table in keyed:
            keyed_table.make_ready()
        compared: list[tuple[Table, str]] = []
        tables = tuple(_table(table, layout, recorders, compared, is_seen=is_seen) for table in layout.tables)
        warn_of_comparing(compared, remedy="make the Saver before the first run" if is_seen else _REMEDY)
        shards = _shards(tables, keyed)
        held = shards.held_keys if shards is not None else None
        prepared = TrainingGraph(
            variables,
            tables,
            ValueOperations(layout.others),
            FullBundleOperations(saved, {item.key: item.role for item in variables.everything()}, held),
            _markers(saved),
            tf.group(*(flags.mark_all() for table in tables for flags in table.flags or ())),
            recorders,
            shards,
            RecordingRoll() if any(is_remote(part.variable.device) for part in _parts(saved)) else None,
            keyed,
        )
    setattr(graph, _ATTRIBUTE, prepared)
    return prepared


def watch_assigns(graph: TrainingGraph, *, except_for: Collection[str]) -> None:
    """From now on the rows of a table are due when its initializer, or any Saver but our own, runs again.

    Tables that are compared do not need it. Before any Session has run these operations: it would not see the change.
    """
    if graph.is_watched:
        return
    graph.is_watched = True
    for table in graph.tables:
        for flags, assigns in zip(table.flags or (), table.set_up, strict=table.flags is not None):
            for assign in assigns:
                if assign.name not in except_for:
                    graph.recorders[assign.name] = mark_when_assigned(flags, assign)


def mark_steps(graph: TrainingGraph, saved: Sequence[SavedVariable]) -> None:
    """From now on each run says when it begins to write to what is saved; after a graph has grown, call it again.

    Before any Session has run these operations. Raises ConfigurationError for a bookmark that cannot be kept.
    """
    noted = bookmark_of(tf.compat.v1.get_default_graph())
    if graph.roll is not None and noted is not None:
        raise ConfigurationError(
            "a bookmark is of one reader, and the workers of a cluster have one each",
            hint="take it out, and save where each reader is with tf.train.job_progress",
        )
    uses = [find_uses(part) for part in _parts(saved)]
    with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(SCOPE):
        graph.marks = graph.marks or StepMarks()
        if noted is not None:
            graph.marks.keep_batch(noted, _step_counters(saved))
        writers = [op for use in uses for op in use.writers]
        graph.marks.add(op for op in writers if not is_apart_from_steps(op))


def _step_counters(saved: Sequence[SavedVariable]) -> list[Any]:
    step = tf.compat.v1.train.get_global_step()
    uses = [find_uses(part) for part in _parts(saved) if part.variable is step]
    return [op for use in uses for op in use.other_writers if op.type.startswith("AssignAdd")]


def _table(
    layout: TableLayout,
    graph: GraphLayout,
    recorders: dict[str, tf.Operation],
    compared: list[tuple[Table, str]],
    *,
    is_seen: bool,
) -> GraphTable:
    """Its recorders are added to `recorders`, or it and why there can be none to `compared`."""
    reason = refusal([use for member in layout.family for use in graph.uses[member.key]])
    if is_seen:
        reason = "a Session ran before the Saver was made"
    flags = None
    if reason is not None and layout.values.growth is not None:
        raise ConfigurationError(
            f"{layout.values.key} has no fixed vocabulary and cannot be compared: {reason}",
            hint="make the Saver before the first run"
            if is_seen
            else "train it with an optimizer that writes only the rows of a batch, outside of tf.cond",
        )
    if reason is None:
        flags = tuple(_flags(layout.values, part, number) for number, part in enumerate(layout.values.parts))
        for number, part_flags in enumerate(flags):
            uses = [graph.uses[member.key][number] for member in layout.family]
            for name, writer in {writer.name: writer for use in uses for writer in use.row_writers}.items():
                recorders[name] = add_recorder(part_flags, writer)
                _guard(layout.values.parts[number].variable, writer)
    else:
        compared.append((layout.table, reason))
    rows = {member.key: RowOperations(member) for member in layout.family}
    uses_of_parts = zip(*(graph.uses[member.key] for member in layout.family), strict=True)
    # A table with keys that begins anew tells of all its rows itself.
    is_watched = layout.values.growth is None
    set_up = tuple(
        tuple(assign for use in uses for assign in use.set_up if is_watched) for uses in uses_of_parts
    )
    return GraphTable(layout.table, rows, flags, layout.strategy, set_up)


def _guard(variable: Any, writer: Any) -> None:
    """Nobody but a chief restores a table on a server while workers train it."""
    if isinstance(variable, EmbeddingVariable) and variable.table.is_on_server:
        variable.table.guard(writer)


def _flags(values: SavedVariable, part: Part, number: int) -> PartFlags:
    own = flags_of(part.variable)
    return make_flags(values, part, number) if own is None else flags_of_table(own)


def _keyed_tables(saved: Sequence[SavedVariable]) -> tuple[EmbeddingTable, ...]:
    return tuple(
        part.variable.table
        for item in saved
        for part in item.parts
        if isinstance(part.variable, EmbeddingVariable)
    )


def _shards(tables: Sequence[GraphTable], keyed: Sequence[EmbeddingTable]) -> ShardDelta | None:
    """None when no other process than that of the Session holds rows."""
    members = [
        ShardMember(
            table.rows[item.key].saved,
            item.role,
            table.key if table.flags is not None else item.key,
            table.flags,
        )
        for table in tables
        for item in table.table.row_variables
    ]
    is_cluster = any(is_remote(part.variable.device) for member in members for part in member.saved.parts)
    return ShardDelta(members, keyed) if is_cluster else None


def _parts(saved: Sequence[SavedVariable]) -> list[Part]:
    return [part for item in saved for part in item.parts]


def _markers(saved: Sequence[SavedVariable]) -> tuple[tf.Variable, ...]:
    """One variable for each device, initialized when everything is restored: no worker starts on half of a model."""
    devices = dict.fromkeys(part.variable.device for part in _parts(saved))
    markers = []
    for number, device in enumerate(devices):
        with tf.device(device):
            markers.append(
                tf.compat.v1.Variable(
                    True,
                    trainable=False,
                    collections=[],
                    use_resource=True,
                    name=f"{SCOPE}/restored/{number}",
                )
            )
    return tuple(markers)

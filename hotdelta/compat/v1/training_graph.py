"""What a graph needs for incremental checkpoints: its tables, their recorders, and the operations to read and write.

Built once, when the scaffold is finalized: every operation of the user is there, and the graph is still open.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from hotdelta.chain.manifest import Tracking
from hotdelta.chain.position import Node
from hotdelta.compat.v1.full_bundle import FullBundleOperations
from hotdelta.compat.v1.graph_layout import GraphLayout, TableLayout, find_layout
from hotdelta.compat.v1.recording import SCOPE, PartFlags, add_recorder, make_flags, refusal
from hotdelta.compat.v1.saved_variables import SavedVariable
from hotdelta.compat.v1.session_values import RowOperations, ValueOperations
from hotdelta.train.trackers import warn_of_comparing
from hotdelta.train.variables import ModelVariables, Table

_REMEDY = "train it with an optimizer that writes only the rows of a batch (not tf.train.AdamOptimizer)"


@dataclass(frozen=True, slots=True, eq=False)
class GraphTable:
    """A table with its slots: how its rows are read and written, and which of them were touched (None: compared)."""

    table: Table
    rows: Mapping[str, RowOperations]
    flags: tuple[PartFlags, ...] | None
    strategy: str

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
    """`restored` is the node that the newest restore of a Session of this graph put it to."""

    variables: ModelVariables
    tables: tuple[GraphTable, ...]
    values: ValueOperations
    full: FullBundleOperations
    markers: tuple[tf.Variable, ...]
    recorders: Mapping[str, tf.Operation]
    restored: Node | None = field(default=None)

    @property
    def own_variables(self) -> list[tf.Variable]:
        """What has to be initialized before training, beside the user's variables."""
        flags = [flags.variable for table in self.tables for flags in table.flags or ()]
        return [*flags, *self.markers]

    @property
    def flag_initializers(self) -> list[tf.Operation]:
        return [flags.variable.initializer for table in self.tables for flags in table.flags or ()]

    @property
    def marker_initializers(self) -> list[tf.Operation]:
        return [marker.initializer for marker in self.markers]


_graphs: weakref.WeakKeyDictionary[Any, TrainingGraph] = weakref.WeakKeyDictionary()


def training_graph_of(graph: Any) -> TrainingGraph | None:
    return _graphs.get(graph)


def prepare_graph(saved: Sequence[SavedVariable]) -> TrainingGraph:
    """Add recorders and operations to the default graph; the second call for a graph returns the first's answer."""
    graph = tf.compat.v1.get_default_graph()
    known = _graphs.get(graph)
    if known is not None:
        return known
    layout = find_layout(saved)
    variables = layout.variables
    recorders: dict[str, tf.Operation] = {}
    with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(SCOPE):
        prepared = TrainingGraph(
            variables,
            tuple(_table(table, layout, recorders) for table in layout.tables),
            ValueOperations(layout.others),
            FullBundleOperations(saved, {item.key: item.role for item in variables.everything()}),
            _markers(saved),
            recorders,
        )
    _graphs[graph] = prepared
    return prepared


def _table(layout: TableLayout, graph: GraphLayout, recorders: dict[str, tf.Operation]) -> GraphTable:
    reason = refusal([use for member in layout.family for use in graph.uses[member.key]])
    flags = None
    if reason is None:
        flags = tuple(
            make_flags(layout.values, part, number) for number, part in enumerate(layout.values.parts)
        )
        for number, part_flags in enumerate(flags):
            uses = [graph.uses[member.key][number] for member in layout.family]
            for name, writer in {writer.name: writer for use in uses for writer in use.row_writers}.items():
                recorders[name] = add_recorder(part_flags, writer)
    else:
        warn_of_comparing(layout.table, reason, remedy=_REMEDY)
    rows = {member.key: RowOperations(member) for member in layout.family}
    return GraphTable(layout.table, rows, flags, layout.strategy)


def _markers(saved: Sequence[SavedVariable]) -> tuple[tf.Variable, ...]:
    """One variable for each device, initialized when everything is restored: no worker starts on half of a model."""
    devices = dict.fromkeys(part.variable.device for item in saved for part in item.parts)
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

"""Turns the inference part of a graph into one whose tables are whole and are only gathered from.

Look-ups in the parts of a partitioned table become look-ups in one table: the parts lie one after another in it, so
row r of a part is row `first + r` of the table, whatever the strategy by which ids were dealt out. What enters a branch
or a loop of TensorFlow 1 (through Switch or Enter) is then the handle of the table, and no longer its value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from exporter.graph.node_definitions import (
    SEGMENT_LOOKUPS,
    copy_of,
    index_dtype,
    make_node,
    producer_of,
    waits,
)
from hotdelta.compat.v1.embedding.table import GRADIENTS, SERVED_BY, SERVED_INPUTS
from hotdelta.compat.v1.graph.saved_variables import SavedVariable
from hotdelta.compat.v1.graph.writers import written_variable
from hotdelta.compat.v1.serving.table_sources import PASSES_HANDLES, REFERENCES, TableSource, TableSources
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import forget_colocation
from hotdelta.train.tables.graph_walk import needed_operations

v1 = tf.compat.v1

_HANDLE = "hotdelta_handle"
_NO_ID = -1


@dataclass(frozen=True, slots=True)
class ServingGraph:
    """A graph to import: which of its inputs are the handles of which variables, and which are look-up tables.

    `counters`: those of which variables count the unknown keys of which table.
    """

    definition: Any
    handles: Mapping[str, str]
    lookup_tables: tuple[str, ...]
    counters: Mapping[str, str] = field(default_factory=dict)


def rewrite_for_serving(
    graph: Any, outputs: Sequence[tf.Tensor], saved: Sequence[SavedVariable], tables: Collection[str]
) -> ServingGraph:
    """`saved` are the variables that are served; `tables` are the keys of those of which rows are gathered.

    Raises ConfigurationError, naming it, for an update, for a variable that is not served, or for what cannot be
    rewritten.
    """
    wanted = sorted({tensor.op.name for tensor in outputs})
    pruned = v1.graph_util.extract_sub_graph(graph.as_graph_def(), wanted)
    refuse_updates((graph.get_operation_by_name(node.name) for node in pruned.node), outputs)
    rewriting = _Rewriting(pruned, saved, tables)
    definition = v1.graph_util.extract_sub_graph(rewriting.run(), wanted)
    used = {node.name for node in definition.node}
    handles = {name: key for name, key in rewriting.handles.items() if name in used}
    lookup_tables = tuple(node.name for node in definition.node if node.op in ("HashTableV2", "HashTable"))
    counters = {name: key for name, key in rewriting.counters.items() if name in used}
    return ServingGraph(definition, handles, lookup_tables, counters)


def refuse_updates(operations: Iterable[Any], outputs: Iterable[tf.Tensor]) -> None:
    """Raises ConfigurationError when one of the operations, which the outputs need, writes to a variable."""
    for operation in operations:
        variable = written_variable(operation)
        if variable is not None:
            (output, *_) = (tensor for tensor in outputs if operation in needed_operations([tensor]))
            raise ConfigurationError(
                f"output {output.name!r} waits for {operation.type} {operation.name!r}, which writes to variable "
                f"{variable!r}: each prediction would change it",
                hint="give what is computed before any update: no value of a train_op or of a metric's update_op, and "
                "nothing that was made inside tf.control_dependencies([train_op]); build layers with training=False",
            )


@dataclass
class _Rewriting:
    definition: Any
    saved: Sequence[SavedVariable]
    tables: Collection[str]
    handles: dict[str, str] = field(default_factory=dict)
    counters: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # By the name of the node: what counts the unknown keys of a table, which is not saved.
        self._unknown = {
            item.growth.unknown.op.name: item.key
            for item in self.saved
            if item.growth is not None and item.growth.unknown is not None
        }
        self._sources = TableSources(self.definition.node, self.saved, self.tables)
        self._made: list[Any] = []

    def run(self) -> Any:
        for number, item in enumerate(self.saved):
            name = f"{_HANDLE}_{number}"
            self.handles[name] = item.key
            self._add(name, "Placeholder", dtype=tf.resource, shape=tf.TensorShape([]))
        self._handle_of = {key: name for name, key in self.handles.items()}
        for name, key in self._unknown.items():
            self.counters[name] = key
            self._add(name, "Placeholder", dtype=tf.resource, shape=tf.TensorShape([]))
        for node in self.definition.node:
            self._rewrite(node)
        rewritten = v1.GraphDef(versions=self.definition.versions, library=self.definition.library)
        rewritten.node.extend(self._made)
        return rewritten

    def _rewrite(self, node: Any) -> None:
        """Add what takes the node's place, under its name."""
        if node.name in self._unknown:
            return
        if SERVED_BY in node.attr:
            self._copy(_served(node))
            return
        source = self._sources.of_lookup(node)
        part = self._sources.of_node(node.name)
        if part is not None:
            # A reference becomes the value; a handle is named by those who use it.
            if node.op in REFERENCES:
                self._add_value(node.name, part)
        elif node.op in REFERENCES or node.op == "VarHandleOp":
            raise ConfigurationError(
                f"the outputs depend on variable {node.name!r}, which is not served",
                hint="export only what the model's own variables are needed for (not the global step, for example)",
            )
        elif source is not None and node.op in SEGMENT_LOOKUPS:
            self._add_segments(node, source)
        elif source is not None:
            self._add_gather(node, source)
        elif node.op not in PASSES_HANDLES or self._sources.of_handle(node.name) is None:
            self._copy(node)

    def _copy(self, node: Any) -> None:
        copied = _anywhere(node)
        del copied.input[:]
        for name in node.input:
            source = self._sources.of_handle(name)
            if source is None:
                copied.input.append(name)
            elif name.startswith("^"):
                continue
            elif len(source.item.parts) == 1:
                copied.input.append(self._add_steps(f"{node.name}/{len(copied.input)}", source))
            elif node.op == "ReadVariableOp":
                self._add_value(node.name, source, self._sources.without_handles(waits(node)))
                return
            else:
                raise ConfigurationError(
                    f"{node.op} {node.name!r} uses {source.item.key!r} in a way that cannot be exported",
                    hint="look rows up with tf.nn.embedding_lookup, outside of every tf.function",
                )
        self._made.append(copied)

    def _add_segments(self, node: Any, source: TableSource) -> None:
        """Sums of rows of the whole table. The exporter reads no more of it than these rows."""
        whole = self._add_read(f"{node.name}/whole", source, self._sources.waits_of_lookup(node))
        rest = self._sources.without_handles(node.input[2:])
        copied = _anywhere(node)
        del copied.input[:]
        copied.input.extend([whole, self._table_rows(node, source), *rest])
        self._made.append(copied)

    def _add_gather(self, node: Any, source: TableSource) -> None:
        self._add(
            node.name,
            "ResourceGather",
            self._add_steps(node.name, source),
            self._table_rows(node, source),
            *self._sources.waits_of_lookup(node),
            dtype=source.item.dtype,
            Tindices=index_dtype(node),
            batch_dims=0,
            validate_indices=True,
        )

    def _add_steps(self, name: str, source: TableSource) -> str:
        """The handle of the whole table where, and when, the part or its value has come to."""
        handle = self._handle_of[source.item.key]
        for number, (step, output) in enumerate(source.steps):
            copied = _anywhere(step)
            copied.name = f"{name}/handle_{number}"
            if step.op == "ReadVariableOp":
                copied.op = "Identity"
                copied.attr.pop("dtype")
            copied.attr["T"].type = tf.resource.as_datatype_enum
            del copied.input[:]
            copied.input.extend([handle, *self._sources.without_handles(step.input[1:])])
            self._made.append(copied)
            handle = f"{copied.name}:{output}" if output else copied.name
        return handle

    def _table_rows(self, node: Any, source: TableSource) -> str:
        """A row that the part does not have stays an error: it must not become a row of the next part."""
        part, ids, dtype, name = source.part, node.input[1], index_dtype(node), f"{node.name}/ids"
        if len(source.item.parts) == 1:
            return str(ids)
        beside = ids if source.steps else ""
        zero, rows, first, no_id = (
            self._add_constant(f"{name}/{what}", np.array(value, dtype.as_numpy_dtype), beside)
            for what, value in (
                ("zero", 0),
                ("rows", part.rows),
                ("first", part.first_row),
                ("no_id", _NO_ID),
            )
        )
        is_not_negative = self._add(f"{name}/is_not_negative", "GreaterEqual", ids, zero, T=dtype)
        is_in_part = self._add(f"{name}/is_in_part", "Less", ids, rows, T=dtype)
        is_row = self._add(f"{name}/is_row", "LogicalAnd", is_not_negative, is_in_part)
        moved = self._add(f"{name}/moved", "AddV2", ids, first, T=dtype)
        return self._add(f"{name}/table_rows", "SelectV2", is_row, moved, no_id, T=dtype)

    def _add_value(self, name: str, source: TableSource, awaited: Sequence[str] = ()) -> None:
        item, part = source.item, source.part
        if len(item.parts) == 1:
            self._add_read(name, source, awaited)
            return
        whole = self._add_read(f"{name}/whole", source, awaited)
        begin = np.zeros(len(item.shape), np.int64)
        size = np.array([part.rows, *item.shape[1:]], np.int64)
        begin[0] = part.first_row
        beside = whole if source.steps else ""
        begins = self._add_constant(f"{name}/begin", begin, beside)
        sizes = self._add_constant(f"{name}/size", size, beside)
        self._add(name, "Slice", whole, begins, sizes, T=item.dtype, Index=tf.int64)

    def _add_read(self, name: str, source: TableSource, awaited: Sequence[str]) -> str:
        handle = self._add_steps(name, source)
        return self._add(name, "ReadVariableOp", handle, *awaited, dtype=source.item.dtype)

    def _add_constant(self, name: str, value: np.ndarray, beside: str) -> str:
        """`beside`: what it is used with in a branch or loop, where it has to be of the same iteration."""
        awaited = [f"^{producer_of(beside)}"] if beside else []
        tensor = tf.make_tensor_proto(value)
        return self._add(name, "Const", *awaited, dtype=tf.as_dtype(value.dtype), value=tensor)

    def _add(self, name: str, operation: str, *inputs: str, **attributes: Any) -> str:
        self._made.append(make_node(name, operation, inputs, **attributes))
        return name


def _served(node: Any) -> Any:
    """The call of the function that finds rows where nobody trains, which takes the first of the same inputs."""
    called = copy_of(node)
    called.attr["f"].func.name = node.attr[SERVED_BY].s.decode()
    inputs = [name for name in node.input if not name.startswith("^")][:SERVED_INPUTS]
    del called.input[:], called.attr["Tin"].list.type[SERVED_INPUTS:]
    called.input.extend([*inputs, *waits(node)])
    del called.attr[SERVED_BY]
    return called


def _anywhere(node: Any) -> Any:
    """A copy that may be placed on any device."""
    copied = copy_of(node)
    copied.ClearField("device")
    forget_colocation(copied)
    if "_gradient_op_type" in copied.attr and copied.attr["_gradient_op_type"].s.decode() in GRADIENTS:
        del copied.attr["_gradient_op_type"]
    return copied

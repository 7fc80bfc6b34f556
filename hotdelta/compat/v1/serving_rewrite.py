"""Turns the inference part of a graph into one whose tables are whole and are only gathered from.

Look-ups in the parts of a partitioned table become look-ups in one table: the parts lie one after another in it, so
row r of a part is row `first + r` of the table, whatever the strategy by which ids were dealt out. What enters a branch
or a loop of TensorFlow 1 (through Switch or Enter) is then the handle of the table, and no longer its value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from exporter.node_definitions import SEGMENT_LOOKUPS, batch_dims, copy_of, index_dtype, is_zero, make_node
from hotdelta.compat.v1.saved_variables import Part, SavedVariable
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1

_HANDLE = "hotdelta_handle"
_REFERENCES = frozenset({"VariableV2", "Variable"})
_GATHERS = frozenset({"ResourceGather", "GatherV2", "Gather"})
_ENTRANCES = frozenset({"Switch", "Enter"})
_PASSES_HANDLES = _ENTRANCES | {"Identity"}
_PASSES_VALUES = _PASSES_HANDLES | {"ReadVariableOp"}
_NO_ID = -1


@dataclass(frozen=True, slots=True)
class _Source:
    """The part that a tensor is, or is the value of, and through which entrances it came: (node, output of it)."""

    item: SavedVariable
    part: Part
    entrances: tuple[tuple[Any, str], ...]


@dataclass(frozen=True, slots=True)
class ServingGraph:
    """A graph to import: which of its inputs are the handles of which variables, and which are look-up tables."""

    definition: Any
    handles: Mapping[str, str]
    lookup_tables: tuple[str, ...]


def rewrite_for_serving(
    graph: Any, outputs: Sequence[tf.Tensor], saved: Sequence[SavedVariable], tables: Collection[str]
) -> ServingGraph:
    """`saved` are the variables that are served; `tables` are the keys of those of which rows are gathered.

    Raises ConfigurationError, naming it, for a variable that is not served, or for what cannot be rewritten.
    """
    wanted = sorted({tensor.op.name for tensor in outputs})
    pruned = v1.graph_util.extract_sub_graph(graph.as_graph_def(), wanted)
    rewriting = _Rewriting(pruned, saved, tables)
    definition = v1.graph_util.extract_sub_graph(rewriting.run(), wanted)
    used = {node.name for node in definition.node}
    handles = {name: key for name, key in rewriting.handles.items() if name in used}
    lookup_tables = tuple(node.name for node in definition.node if node.op in ("HashTableV2", "HashTable"))
    return ServingGraph(definition, handles, lookup_tables)


@dataclass
class _Rewriting:
    definition: Any
    saved: Sequence[SavedVariable]
    tables: Collection[str]
    handles: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes = {node.name: node for node in self.definition.node}
        self._parts = {part.name: (item, part) for item in self.saved for part in item.parts}
        self._made: list[Any] = []

    def run(self) -> Any:
        for number, item in enumerate(self.saved):
            name = f"{_HANDLE}_{number}"
            self.handles[name] = item.key
            self._add(name, "Placeholder", dtype=tf.resource, shape=tf.TensorShape([]))
        self._handle_of = {key: name for name, key in self.handles.items()}
        for node in self.definition.node:
            self._rewrite(node)
        rewritten = v1.GraphDef(versions=self.definition.versions, library=self.definition.library)
        rewritten.node.extend(self._made)
        return rewritten

    def _rewrite(self, node: Any) -> None:
        """Add what takes the node's place, under its name."""
        source = self._looked_up(node)
        if node.name in self._parts:
            # A reference becomes the value; a handle is named by those who use it.
            if node.op in _REFERENCES:
                self._add_value(node.name, _Source(*self._parts[node.name], ()))
        elif node.op in _REFERENCES or node.op == "VarHandleOp":
            raise ConfigurationError(
                f"the outputs depend on variable {node.name!r}, which is not served",
                hint="export only what the model's own variables are needed for (not the global step, for example)",
            )
        elif source is not None and node.op in SEGMENT_LOOKUPS:
            self._add_segments(node, source)
        elif source is not None:
            self._add_gather(node.name, node, source)
        elif node.op not in _PASSES_HANDLES or self._handle_source(node.name) is None:
            self._copy(node)

    def _copy(self, node: Any) -> None:
        copied = _anywhere(node)
        del copied.input[:]
        for name in node.input:
            source = self._handle_source(name)
            if source is None:
                copied.input.append(name)
            elif name.startswith("^"):
                continue
            elif len(source.item.parts) == 1:
                copied.input.append(self._add_entrances(f"{node.name}/{len(copied.input)}", source))
            elif node.op == "ReadVariableOp":
                self._add_value(node.name, source)
                return
            else:
                raise ConfigurationError(
                    f"{node.op} {node.name!r} uses {source.item.key!r} in a way that cannot be exported",
                    hint="look rows up with tf.nn.embedding_lookup, outside of every tf.function",
                )
        self._made.append(copied)

    def _handle_source(self, name: str) -> _Source | None:
        """The variable whose handle a tensor is."""
        source = self._source(name, _PASSES_HANDLES)
        is_handle = source is not None and self._nodes[source.part.name].op not in _REFERENCES
        return source if is_handle else None

    def _source(self, name: str, passing: Collection[str]) -> _Source | None:
        entrances: list[tuple[Any, str]] = []
        node = self._nodes[_producer(name)]
        while node.op in passing:
            if node.op in _ENTRANCES:
                entrances.insert(0, (node, name.partition(":")[2]))
            name = node.input[0]
            node = self._nodes[_producer(name)]
        found = self._parts.get(node.name)
        return None if found is None else _Source(*found, tuple(entrances))

    def _looked_up(self, node: Any) -> _Source | None:
        """The table of a node that gathers rows of a table, of a part of it, or of a copy of those."""
        if node.op not in _GATHERS | SEGMENT_LOOKUPS or batch_dims(node):
            return None
        if node.op == "GatherV2" and not is_zero(self._nodes[_producer(node.input[2])]):
            return None
        source = self._source(node.input[0], _PASSES_VALUES)
        return source if source is not None and source.item.key in self.tables else None

    def _add_segments(self, node: Any, source: _Source) -> None:
        """First the rows, then the sums of them as they lie: the same additions in the same order."""
        name, ids = node.name, node.input[1]
        beside = ids if source.entrances else ""
        rows = self._add_gather(f"{name}/rows", node, source)
        count = self._add(f"{name}/count", "Size", ids, T=index_dtype(node), out_type=tf.int32)
        zero = self._add_constant(f"{name}/first", np.array(0, np.int32), beside)
        one = self._add_constant(f"{name}/step", np.array(1, np.int32), beside)
        every = self._add(f"{name}/every", "Range", zero, count, one, Tidx=tf.int32)
        copied = _anywhere(node)
        copied.attr["Tidx"].type = tf.int32.as_datatype_enum
        copied.input[0], copied.input[1] = rows, every
        self._made.append(copied)

    def _add_gather(self, name: str, node: Any, source: _Source) -> str:
        dtype, ids = index_dtype(node), node.input[1]
        rows = ids if len(source.item.parts) == 1 else self._add_moved_ids(name, source, ids, dtype)
        return self._add(
            name,
            "ResourceGather",
            self._add_entrances(name, source),
            rows,
            dtype=source.item.dtype,
            Tindices=dtype,
            batch_dims=0,
            validate_indices=True,
        )

    def _add_entrances(self, name: str, source: _Source) -> str:
        """The handle of the whole table where the part, or its value, has come to."""
        handle = self._handle_of[source.item.key]
        for number, (entrance, output) in enumerate(source.entrances):
            copied = _anywhere(entrance)
            copied.name = f"{name}/handle_{number}"
            copied.attr["T"].type = tf.resource.as_datatype_enum
            copied.input[0] = handle
            self._made.append(copied)
            handle = f"{copied.name}:{output}" if output else copied.name
        return handle

    def _add_moved_ids(self, name: str, source: _Source, ids: str, dtype: tf.DType) -> str:
        """A row that the part does not have stays an error: it must not become a row of the next part."""
        part, beside = source.part, ids if source.entrances else ""
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

    def _add_value(self, name: str, source: _Source) -> None:
        item, part = source.item, source.part
        handle = self._add_entrances(name, source)
        if len(item.parts) == 1:
            self._add(name, "ReadVariableOp", handle, dtype=item.dtype)
            return
        whole = self._add(f"{name}/whole", "ReadVariableOp", handle, dtype=item.dtype)
        begin = np.zeros(len(item.shape), np.int64)
        size = np.array([part.rows, *item.shape[1:]], np.int64)
        begin[0] = part.first_row
        beside = whole if source.entrances else ""
        begins = self._add_constant(f"{name}/begin", begin, beside)
        sizes = self._add_constant(f"{name}/size", size, beside)
        self._add(name, "Slice", whole, begins, sizes, T=item.dtype, Index=tf.int64)

    def _add_constant(self, name: str, value: np.ndarray, beside: str) -> str:
        """`beside`: what it is used with in a branch or loop, where it has to be of the same iteration."""
        waits = [f"^{_producer(beside)}"] if beside else []
        tensor = tf.make_tensor_proto(value)
        return self._add(name, "Const", *waits, dtype=tf.as_dtype(value.dtype), value=tensor)

    def _add(self, name: str, operation: str, *inputs: str, **attributes: Any) -> str:
        self._made.append(make_node(name, operation, inputs, **attributes))
        return name


def _anywhere(node: Any) -> Any:
    """A copy that may be placed on any device."""
    copied = copy_of(node)
    copied.ClearField("device")
    copied.attr.pop("_class", None)
    return copied


def _producer(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]

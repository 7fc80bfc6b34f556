"""Turns the inference part of a graph into one whose tables are whole and are only gathered from.

Look-ups in the parts of a partitioned table become look-ups in one table: the parts lie one after another in it, so
row r of a part is row `first + r` of the table, whatever the strategy by which ids were dealt out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.compat.v1.graph_writers import SEGMENT_LOOKUPS
from hotdelta.compat.v1.saved_variables import Part, SavedVariable
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1

_HANDLE = "hotdelta_handle"
_REFERENCES = frozenset({"VariableV2", "Variable"})
_GATHERS = frozenset({"ResourceGather", "GatherV2", "Gather"})
_ENTRANCES = frozenset({"Switch", "Enter"})
_NO_ID = -1


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
        variable = self._parts.get(node.name)
        source = self._looked_up(node)
        if variable is not None:
            self._rewrite_variable(node, *variable)
        elif node.op in _REFERENCES or node.op == "VarHandleOp":
            raise ConfigurationError(
                f"the outputs depend on variable {node.name!r}, which is not served",
                hint="export only what the model's own variables are needed for (not the global step, for example)",
            )
        elif source is not None and node.op in SEGMENT_LOOKUPS:
            self._add_segments(node, *source)
        elif source is not None:
            self._add_gather(node.name, node, *source)
        else:
            self._copy(node)

    def _rewrite_variable(self, node: Any, item: SavedVariable, part: Part) -> None:
        """A reference becomes the value; a handle is named by those who use it."""
        if node.op in _REFERENCES:
            self._add_value(node.name, item, part)

    def _copy(self, node: Any) -> None:
        copied = type(node)()
        copied.CopyFrom(node)
        copied.ClearField("device")
        copied.attr.pop("_class", None)
        del copied.input[:]
        for name in node.input:
            variable = self._parts.get(_producer(name))
            if variable is None or self._nodes[_producer(name)].op in _REFERENCES:
                copied.input.append(name)
            elif name.startswith("^"):
                continue
            elif len(variable[0].parts) == 1 and node.op not in _ENTRANCES:
                copied.input.append(self._handle_of[variable[0].key])
            elif node.op == "ReadVariableOp":
                self._add_value(node.name, *variable)
                return
            else:
                raise ConfigurationError(
                    f"{node.op} {node.name!r} uses {variable[0].key!r} in a way that cannot be exported",
                    hint="look rows up with tf.nn.embedding_lookup, outside of tf.cond and tf.while_loop",
                )
        self._made.append(copied)

    def _looked_up(self, node: Any) -> tuple[SavedVariable, Part, str] | None:
        """The table and the ids of a node that gathers rows of a table, of a part of it, or of a copy of those."""
        if node.op not in _GATHERS | SEGMENT_LOOKUPS or _batch_dims(node):
            return None
        if node.op == "GatherV2" and not self._is_zero(node.input[2]):
            return None
        name = _producer(node.input[0])
        while self._nodes[name].op in ("Identity", "ReadVariableOp"):
            name = _producer(self._nodes[name].input[0])
        found = self._parts.get(name)
        if found is None or found[0].key not in self.tables:
            return None
        return (*found, node.input[1])

    def _is_zero(self, name: str) -> bool:
        node = self._nodes[_producer(name)]
        return bool(node.op == "Const" and not tf.make_ndarray(node.attr["value"].tensor))

    def _add_segments(self, node: Any, item: SavedVariable, part: Part, ids: str) -> None:
        """First the rows, then the sums of them as they lie: the same additions in the same order."""
        name = node.name
        rows = self._add_gather(f"{name}/rows", node, item, part, ids)
        count = self._add(f"{name}/count", "Size", ids, T=_index_dtype(node), out_type=tf.int32)
        zero = self._add_constant(f"{name}/first", np.array(0, np.int32))
        one = self._add_constant(f"{name}/step", np.array(1, np.int32))
        every = self._add(f"{name}/every", "Range", zero, count, one, Tidx=tf.int32)
        copied = type(node)()
        copied.CopyFrom(node)
        copied.ClearField("device")
        copied.attr.pop("_class", None)
        copied.attr["Tidx"].type = tf.int32.as_datatype_enum
        copied.input[0], copied.input[1] = rows, every
        self._made.append(copied)

    def _add_gather(self, name: str, node: Any, item: SavedVariable, part: Part, ids: str) -> str:
        dtype = _index_dtype(node)
        rows = ids if len(item.parts) == 1 else self._add_moved_ids(name, part, ids, dtype)
        return self._add(
            name,
            "ResourceGather",
            self._handle_of[item.key],
            rows,
            dtype=item.dtype,
            Tindices=dtype,
            batch_dims=0,
            validate_indices=True,
        )

    def _add_moved_ids(self, name: str, part: Part, ids: str, dtype: tf.DType) -> str:
        """A row that the part does not have stays an error: it must not become a row of the next part."""
        zero, rows, first, no_id = (
            self._add_constant(f"{name}/{what}", np.array(value, dtype.as_numpy_dtype))
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

    def _add_value(self, name: str, item: SavedVariable, part: Part) -> None:
        if len(item.parts) == 1:
            self._add(name, "ReadVariableOp", self._handle_of[item.key], dtype=item.dtype)
            return
        whole = self._add(f"{name}/whole", "ReadVariableOp", self._handle_of[item.key], dtype=item.dtype)
        begin = np.zeros(len(item.shape), np.int64)
        size = np.array([part.rows, *item.shape[1:]], np.int64)
        begin[0] = part.first_row
        begins = self._add_constant(f"{name}/begin", begin)
        sizes = self._add_constant(f"{name}/size", size)
        self._add(name, "Slice", whole, begins, sizes, T=item.dtype, Index=tf.int64)

    def _add_constant(self, name: str, value: np.ndarray) -> str:
        tensor = tf.make_tensor_proto(value)
        return self._add(name, "Const", dtype=tf.as_dtype(value.dtype), value=tensor)

    def _add(self, name: str, operation: str, *inputs: str, **attributes: Any) -> str:
        node = v1.NodeDef(name=name, op=operation, input=list(inputs))
        for attribute, value in attributes.items():
            node.attr[attribute].CopyFrom(_attribute(value))
        self._made.append(node)
        return name


def _attribute(value: Any) -> Any:
    if isinstance(value, bool):
        return v1.AttrValue(b=value)
    if isinstance(value, int):
        return v1.AttrValue(i=value)
    if isinstance(value, tf.DType):
        return v1.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, tf.TensorShape):
        return v1.AttrValue(shape=value.as_proto())
    return v1.AttrValue(tensor=value)


def _batch_dims(node: Any) -> int:
    """Asking a protocol buffer for an attribute that is not there would add it."""
    return int(node.attr["batch_dims"].i) if "batch_dims" in node.attr else 0


def _index_dtype(node: Any) -> tf.DType:
    return tf.as_dtype(node.attr["Tidx" if node.op in SEGMENT_LOOKUPS else "Tindices"].type)


def _producer(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]

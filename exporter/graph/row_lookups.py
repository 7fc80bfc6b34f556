"""Turns look-ups that read a whole table first into gathers of rows, wherever in a signature's graph they are.

`tf.gather(table.read_value(), ids)`, `keras.ops.take(layer.embeddings, ids, axis=0)` and the sparse look-ups of tf.nn
read the variable and look up in what they read. Once a row was updated in place each such read copies the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from exporter.graph.node_definitions import (
    SEGMENT_LOOKUPS,
    batch_dims,
    copy_of,
    has_gather_ids,
    index_dtype,
    is_zero,
    make_node,
    producer_of,
    waits,
)
from exporter.graph.signature_graph import EditableBody, SignatureGraph
from exporter.graph.unused_reads import without_unused_reads
from hotdelta.train.tables.graph_walk import Use

_WHOLE_READS = frozenset({"ReadVariableOp", "DisableCopyOnRead"})
_GATHERS = frozenset({"Gather", "GatherV2", "GatherNd"})
_PASSES_ON = frozenset({"Identity", "StopGradient", "PreventGradient", "Cast"})
_REFUSES_BAD_IDS = (b"", b"DEFAULT")


def gather_rows(graph: SignatureGraph, table_uses: Iterable[Use]) -> bool:
    """Edit the graph, given the uses of its tables. Returns whether there was anything to do."""
    reads: dict[str, set[str]] = defaultdict(set)
    for use in table_uses:
        if use.operation in _WHOLE_READS:
            reads[use.body].add(use.node)
    changed = [name for name, nodes in reads.items() if _look_up_in(graph.bodies[name], nodes)]
    return bool(changed)


def guard_sums(graph: SignatureGraph) -> bool:
    """Keep TensorFlow's graph optimiser from reading whole tables again. Returns whether there was anything to do.

    From a sum of rows that were gathered by unique ids, as tf.nn.embedding_lookup_sparse makes it, the optimiser makes
    one of rows of the whole variable, which it reads for that. It does not see that they are unique through this.
    """
    bodies = [
        body for body in graph.bodies.values() if any(node.op in SEGMENT_LOOKUPS for node in body.nodes)
    ]
    for body in bodies:
        body.replace_nodes([new for node in body.nodes for new in _guarded(body, node)])
    return bool(bodies)


def _guarded(body: EditableBody, node: Any) -> Iterator[Any]:
    if node.op in SEGMENT_LOOKUPS:
        name, places, dtype = f"{node.name}/guarded", node.input[1], index_dtype(node)
        yield make_node(name, "EnsureShape", [places], T=dtype, shape=tf.TensorShape([None]))
        node = copy_of(node)
        node.input[1] = body.reference(name)
    yield node


def _look_up_in(body: EditableBody, reads: set[str]) -> bool:
    lookups = _Lookups(body, reads)
    nodes = [new for node in body.nodes for new in lookups.rewritten(node)]
    kept = without_unused_reads(nodes, reads, body)
    is_changed = lookups.is_changed or len(kept) < len(nodes)
    if is_changed:
        body.replace_nodes(kept)
    return is_changed


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of a whole table that a look-up looks up in: what came before it, and how the value was cast."""

    handle: str
    dtype: tf.DType
    waits: tuple[str, ...]
    casts: tuple[tf.DType, ...]


class _Lookups:
    """Finds look-ups in what the reads of one body have read, and says which nodes take their place."""

    def __init__(self, body: EditableBody, reads: set[str]) -> None:
        self._body = body
        self._reads = reads
        self._nodes = {node.name: node for node in body.nodes}
        self.is_changed = False

    def rewritten(self, node: Any) -> Iterator[Any]:
        """What takes the node's place: its last node has the node's name, and one output that is called the same."""
        read = self._read_by(node) if self._is_lookup(node) else None
        if read is None:
            yield node
            return
        self.is_changed = True
        if node.op == "Shape":
            dtype = tf.as_dtype(node.attr["out_type"].type) if "out_type" in node.attr else tf.int32
            yield make_node(node.name, "VariableShape", [read.handle, *read.waits], out_type=dtype)
        elif node.op in SEGMENT_LOOKUPS:
            yield from self._segments(node, read)
        else:
            yield from self._rows(node, read, node.name)

    def _is_lookup(self, node: Any) -> bool:
        """Whether there is an operation on variables that does the same."""
        if node.op == "Shape":
            return True
        if node.op not in _GATHERS | SEGMENT_LOOKUPS or not has_gather_ids(node):
            return False
        if node.op == "GatherV2":
            axis = self._axis(node)
            return axis is not None and is_zero(axis) and not batch_dims(node)
        return "bad_indices_policy" not in node.attr or node.attr["bad_indices_policy"].s in _REFUSES_BAD_IDS

    def _read_by(self, lookup: Any) -> _Read | None:
        casts: list[tf.DType] = []
        awaited = [*waits(lookup), *self._waits_of_axis(lookup)]
        node = self._nodes.get(producer_of(lookup.input[0]))
        while node is not None and node.op in _PASSES_ON:
            awaited += waits(node)
            if node.op == "Cast":
                if "Truncate" in node.attr and node.attr["Truncate"].b:
                    return None
                casts.append(tf.as_dtype(node.attr["DstT"].type))
            node = self._nodes.get(producer_of(node.input[0]))
        if node is None or node.name not in self._reads:
            return None
        dtype = tf.as_dtype(node.attr["dtype"].type)
        awaited += waits(node)
        return _Read(node.input[0], dtype, tuple(dict.fromkeys(awaited)), tuple(reversed(casts)))

    def _axis(self, gather: Any) -> Any:
        return self._nodes.get(producer_of(gather.input[2]))

    def _waits_of_axis(self, lookup: Any) -> list[str]:
        """Under tf.control_dependencies the axis may be what waits, and the look-up only waits for the axis."""
        return waits(self._axis(lookup)) if lookup.op == "GatherV2" else []

    def _segments(self, node: Any, read: _Read) -> Iterator[Any]:
        """First the rows, then the sums of them as they lie: the same additions in the same order."""
        name, reference = node.name, self._body.reference
        yield from self._rows(node, read, f"{name}/rows")
        size = make_node(f"{name}/size", "Size", [node.input[1]], T=index_dtype(node), out_type=tf.int32)
        # Constants would not be of the loop of TensorFlow 1 that the node may be in.
        first = make_node(f"{name}/first", "ZerosLike", [reference(size.name)], T=tf.int32)
        step = make_node(f"{name}/step", "OnesLike", [reference(size.name)], T=tf.int32)
        limits = [reference(first.name, "y"), reference(size.name), reference(step.name, "y")]
        every = make_node(f"{name}/every", "Range", limits, Tidx=tf.int32)
        yield from (size, first, step, every)
        summed = copy_of(node)
        summed.attr["Tidx"].type = tf.int32.as_datatype_enum
        summed.input[0], summed.input[1] = reference(f"{name}/rows"), reference(every.name)
        yield summed

    def _rows(self, node: Any, read: _Read, name: str) -> Iterator[Any]:
        gathered = f"{name}/gathered" if read.casts else name
        inputs = [read.handle, node.input[1], *read.waits]
        attributes = {"dtype": read.dtype, "Tindices": index_dtype(node)}
        if node.op == "GatherNd":
            yield make_node(gathered, "ResourceGatherNd", inputs, **attributes)
        else:
            yield make_node(
                gathered, "ResourceGather", inputs, batch_dims=0, validate_indices=True, **attributes
            )
        if read.casts:
            yield from self._casts(gathered, read, name)

    def _casts(self, gathered: str, read: _Read, name: str) -> Iterator[Any]:
        source, dtype = self._body.reference(gathered), read.dtype
        for number, wanted in enumerate(read.casts):
            cast = make_node(
                f"{name}/cast_{number}", "Cast", [source], SrcT=dtype, DstT=wanted, Truncate=False
            )
            yield cast
            source, dtype = self._body.reference(cast.name, "y"), wanted
        yield make_node(name, "Identity", [source], T=dtype)

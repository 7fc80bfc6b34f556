"""Who writes to a table in a traced training function: the proof that recording sees every write, or that it does not.

A table may be *touched* only if, in every trace, each operation that can write to it or to its slots is a row-wise one
that names its rows, and the recorder stands in the same trace. Anything that is not known here counts as a writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

READERS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
)
ROW_WRITERS = frozenset(
    {
        *(f"ResourceScatter{kind}" for kind in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")),
        *(f"ResourceScatterNd{kind}" for kind in ("Update", "Add", "Sub", "Min", "Max")),
        *(
            f"ResourceSparseApply{kind}"
            for kind in (
                "Adadelta",
                "Adagrad",
                "AdagradDA",
                "AdagradV2",
                "CenteredRMSProp",
                "Ftrl",
                "FtrlV2",
                "KerasMomentum",
                "Momentum",
                "ProximalAdagrad",
                "ProximalGradientDescent",
                "RMSProp",
            )
        ),
    }
)
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


@dataclass(frozen=True, slots=True)
class TraceUse:
    """What one trace does to each watched variable: the names of the operations that use it."""

    readers: Mapping[str, frozenset[str]]
    row_writers: Mapping[str, frozenset[str]]
    other_writers: Mapping[str, frozenset[str]]


def inspect_trace(graph: Any, watched: Mapping[str, tf.Variable]) -> TraceUse:
    """How the traced function `graph` (a FuncGraph), with all that it calls, uses the watched variables."""
    key_of_handle = {id(variable.handle): key for key, variable in watched.items()}
    known = {
        inner.op.name: key_of_handle[id(outer)]
        for outer, inner in graph.captures
        if id(outer) in key_of_handle
    }
    definition = graph.as_graph_def()
    walk = _Walk({function.signature.name: function for function in definition.library.function})
    walk.visit(definition.node, known)
    return TraceUse(*(_freeze(found) for found in (walk.readers, walk.row_writers, walk.other_writers)))


def _freeze(found: Mapping[str, set[str]]) -> Mapping[str, frozenset[str]]:
    return {key: frozenset(operations) for key, operations in found.items()}


@dataclass
class _Walk:
    """Follows resource handles from the captures of a function through everything it calls."""

    functions: Mapping[str, Any]
    readers: dict[str, set[str]] = field(default_factory=dict)
    row_writers: dict[str, set[str]] = field(default_factory=dict)
    other_writers: dict[str, set[str]] = field(default_factory=dict)
    _seen: set[tuple[str, tuple[str | None, ...]]] = field(default_factory=set)

    def visit(self, nodes: Sequence[Any], known: Mapping[str, str]) -> None:
        """`known` maps the names of tensors that are watched handles to the key of their variable."""
        handles = dict(known)
        for node in nodes:
            keys = [handles.get(_producer(name)) for name in node.input if not name.startswith("^")]
            if any(keys):
                self._use(node, keys, handles)

    def _use(self, node: Any, keys: list[str | None], handles: dict[str, str]) -> None:
        if node.op == "Identity":
            handles[node.name] = next(key for key in keys if key)
        elif node.op in _BRANCHES:
            self._call(node, keys[1:])
        elif node.op in _CALLS:
            self._call(node, keys)
        else:
            self._record(node.op, {key for key in keys if key})

    def _record(self, operation: str, keys: set[str]) -> None:
        if operation in READERS:
            found = self.readers
        elif operation in ROW_WRITERS:
            found = self.row_writers
        else:
            found = self.other_writers
        for key in keys:
            found.setdefault(key, set()).add(operation)

    def _call(self, node: Any, keys: list[str | None]) -> None:
        for name in _called_functions(node):
            visit = (name, tuple(keys))
            function = self.functions.get(name)
            if visit in self._seen:
                continue
            self._seen.add(visit)
            if function is None:
                self._record(f"unknown function {name}", {key for key in keys if key})
                continue
            arguments = [argument.name for argument in function.signature.input_arg]
            known = {argument: key for argument, key in zip(arguments, keys, strict=False) if key}
            self.visit(function.node_def, known)


def _called_functions(node: Any) -> list[str]:
    names = []
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names.extend(function.name for function in attribute.list.func)
    return names


def _producer(tensor_name: str) -> str:
    return tensor_name.partition(":")[0]

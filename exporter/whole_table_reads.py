"""Finds what would read a whole table for each prediction, by following the table's handle through the graph.

Only row gathers and shape queries may touch a table: once a row was updated in place, each whole read copies it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hotdelta.chain.schema import Schema
from hotdelta.errors import ConfigurationError
from hotdelta.train.serving_module import ServingModule

_ROW_ACCESS = frozenset({"ResourceGather", "ResourceGatherNd", "VariableShape"})
_PASSES_ON = frozenset({"Identity"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_WHOLE_READ = "ReadVariableOp"


def refuse_whole_table_reads(module: ServingModule, schema: Schema, *, allowed: Collection[str] = ()) -> None:
    """Raises ConfigurationError, naming the table and the operation, unless the table is `allowed` by key."""
    unknown = sorted(set(allowed) - {table.key for table in schema.tables})
    if unknown:
        raise ConfigurationError(
            f"{unknown[0]!r} is not a table",
            hint=f"tables: {', '.join(table.key for table in schema.tables)}",
        )
    pairs = zip(schema.variables, module.variables, strict=True)
    tables = {spec.key: variable for spec, variable in pairs if spec.is_table}
    for key, variable in tables.items():
        for name, function in module.signatures.items():
            operation = next(_whole_accesses(function, variable), None)
            if operation and key not in allowed:
                raise ConfigurationError(
                    f"signature {name!r} reads all of table {key!r} for each prediction (operation {operation})",
                    hint="look rows up with hotdelta.keras.Embedding or tf.gather(variable, ids); if the whole table "
                    f"is meant, allow it: --allow-whole-table-read {key}",
                )


def _whole_accesses(function: Any, variable: tf.Variable) -> Iterator[str]:
    graph = function.graph
    for outer, inner in graph.captures:
        if outer is variable.handle:
            graph_def = graph.as_graph_def()
            body = _Body(graph_def.node, returned=[tensor.op.name for tensor in graph.outputs])
            yield from _follow(body, inner.op.name, _library(graph_def))


class _Body:
    """The nodes of a graph or function, and who consumes what. What is returned counts as consumed."""

    def __init__(
        self, nodes: Iterable[Any], *, argument_names: Sequence[str] = (), returned: Iterable[str]
    ) -> None:
        self.argument_names = argument_names
        self._returned = set(returned)
        self.consumers: dict[str, list[tuple[Any, int]]] = defaultdict(list)
        for node in nodes:
            for index, name in enumerate(node.input):
                if not name.startswith("^"):
                    self.consumers[name.partition(":")[0]].append((node, index))

    @classmethod
    def of_function(cls, function: Any) -> _Body:
        return cls(
            function.node_def,
            argument_names=[argument.name for argument in function.signature.input_arg],
            returned=[source.partition(":")[0] for source in function.ret.values()],
        )

    def is_used(self, name: str) -> bool:
        """Whether a value goes anywhere but into copies that nobody reads: such reads are pruned."""
        if name in self._returned:
            return True
        return any(
            node.op not in _PASSES_ON or self.is_used(node.name) for node, _ in self.consumers.get(name, ())
        )


def _library(graph_def: Any) -> Mapping[str, _Body]:
    return {function.signature.name: _Body.of_function(function) for function in graph_def.library.function}


def _follow(body: _Body, source: str, library: Mapping[str, _Body]) -> Iterator[str]:
    for node, index in body.consumers.get(source, ()):
        if node.op in _PASSES_ON:
            yield from _follow(body, node.name, library)
        elif node.op in _CALLS or node.op in _BRANCHES:
            yield from _follow_call(node, index - (node.op in _BRANCHES), library)
        elif node.op not in _ROW_ACCESS and (node.op != _WHOLE_READ or body.is_used(node.name)):
            yield f"{node.op} {node.name}"


def _follow_call(node: Any, index: int, library: Mapping[str, _Body]) -> Iterator[str]:
    for attribute in node.attr.values():
        functions = [attribute.func, *attribute.list.func]
        for name in {function.name for function in functions if function.name}:
            callee = library[name]
            yield from _follow(callee, callee.argument_names[index], library)

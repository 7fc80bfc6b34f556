"""Which operations touch a variable: its handle is followed through a signature's graph, calls, branches and loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_PASSES_ON = frozenset({"Identity"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


@dataclass(frozen=True, slots=True)
class Use:
    """An operation that takes the handle. `is_used`: its result goes somewhere."""

    operation: str
    node: str
    is_used: bool

    def __str__(self) -> str:
        return f"{self.operation} {self.node}"


def handle_uses(function: Any, variables: Sequence[tf.Variable]) -> Iterator[tuple[int, Use]]:
    """Each use of a variable, with the variable's index. The graph, which may be large, is read once for all."""
    graph = function.graph
    graph_def = graph.as_graph_def()
    body = _Body(graph_def.node, returned=[tensor.op.name for tensor in graph.outputs])
    library = _library(graph_def)
    index_of = {id(variable.handle): index for index, variable in enumerate(variables)}
    for outer, inner in graph.captures:
        if (index := index_of.get(id(outer))) is not None:
            for use in _follow(body, inner.op.name, library):
                yield index, use


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


def _follow(body: _Body, source: str, library: Mapping[str, _Body]) -> Iterator[Use]:
    for node, index in body.consumers.get(source, ()):
        if node.op in _PASSES_ON:
            yield from _follow(body, node.name, library)
        elif node.op in _CALLS or node.op in _BRANCHES:
            yield from _follow_call(node, index - (node.op in _BRANCHES), library)
        else:
            yield Use(node.op, node.name, body.is_used(node.name))


def _follow_call(node: Any, index: int, library: Mapping[str, _Body]) -> Iterator[Use]:
    for attribute in node.attr.values():
        functions = [attribute.func, *attribute.list.func]
        for name in {function.name for function in functions if function.name}:
            callee = library[name]
            yield from _follow(callee, callee.argument_names[index], library)

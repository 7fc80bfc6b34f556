"""Which operations take the handle of a variable: it is followed through a signature, its calls, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from exporter.graph.signature_graph import BRANCHES, CALLS, Body, SignatureGraph, Tensor

# Switch and Enter lead into the branches and loops of TensorFlow 1.
_PASSES_ON = frozenset({"Identity", "Switch", "Enter"})


@dataclass(frozen=True, slots=True)
class Use:
    """An operation that takes the handle of the index-th variable, in the body of that name."""

    index: int
    operation: str
    node: str
    body: str

    def __str__(self) -> str:
        return f"{self.operation} {self.node}"


def handle_uses(graph: SignatureGraph, variables: Sequence[tf.Variable]) -> list[Use]:
    """Every use of every variable, in one search."""
    search = _Search(graph)
    for index, argument in graph.captured(variables):
        search.follow(index, graph.bodies[""], (argument, 0))
    return list(dict.fromkeys(search.found))


class _Search:
    def __init__(self, graph: SignatureGraph) -> None:
        self._graph = graph
        self._consumers = {name: body.consumers() for name, body in graph.bodies.items()}
        self.found: list[Use] = []

    def follow(self, index: int, body: Body, handle: Tensor) -> set[int]:
        """Record all uses of a handle in a body. Returns as which outputs of the body it leaves it again."""
        leaves = {number for number, returned in enumerate(body.returned) if returned == handle}
        for node, number in self._consumers[body.name].get(handle, ()):
            if node.op in _PASSES_ON:
                passed = [(node.name, 0), (node.name, 1)] if node.op == "Switch" else [(node.name, 0)]
            elif node.op in CALLS or node.op in BRANCHES:
                passed = self._follow_call(index, node, number - (node.op in BRANCHES))
            else:
                passed = []
                self.found.append(Use(index, node.op, node.name, body.name))
            for tensor in passed:
                leaves |= self.follow(index, body, tensor)
        return leaves

    def _follow_call(self, index: int, node: Any, argument: int) -> list[Tensor]:
        left: set[int] = set()
        for callee in self._graph.callees(node):
            left |= self.follow(index, callee, (callee.arguments[argument], 0))
        return [(node.name, number) for number in sorted(left)]

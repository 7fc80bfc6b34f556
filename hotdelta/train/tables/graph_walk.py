"""How graphs are walked: the handle of a variable forwards, through calls, branches and loops, and outputs backwards.

Handles are followed through definitions, because only these show what is inside of functions. Never changes a graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
# Switch and Enter lead into the branches and loops of TensorFlow 1.
_PASSES_ON = frozenset({"Identity", "Switch", "Enter"})

# (name of a node or argument, number of the output)
Tensor = tuple[str, int]


class Body:
    """The nodes of a graph, or of a function of its library. `arguments` and `returned` are in order."""

    def __init__(
        self, nodes: Any, *, arguments: Sequence[str], returned: Sequence[str], function: Any = None
    ) -> None:
        self.name = function.signature.name if function is not None else ""
        self.nodes = nodes
        self.arguments = arguments
        self.returned = [_tensor_of(reference) for reference in returned]
        self.function = function

    def consumers(self) -> Mapping[Tensor, list[tuple[Any, int]]]:
        """For each tensor the nodes that take it, and as which input."""
        found: dict[Tensor, list[tuple[Any, int]]] = defaultdict(list)
        for node in self.nodes:
            for number, reference in enumerate(node.input):
                if not reference.startswith("^"):
                    found[_tensor_of(reference)].append((node, number))
        return found


AnyBody = TypeVar("AnyBody", bound=Body)


def bodies_of(graph: Any, definition: Any, kind: type[AnyBody]) -> dict[str, AnyBody]:
    """Of a traced function (a FuncGraph), given its definition: its own body, which is "", and all that are called."""
    main = kind(
        definition.node,
        arguments=[tensor.op.name for tensor in graph.inputs],
        returned=[tensor.name for tensor in graph.outputs],
    )
    called = [
        kind(
            function.node_def,
            arguments=[argument.name for argument in function.signature.input_arg],
            returned=[function.ret[argument.name] for argument in function.signature.output_arg],
            function=function,
        )
        for function in definition.library.function
    ]
    return {body.name: body for body in (main, *called)}


@dataclass(frozen=True, slots=True)
class Use:
    """An operation that takes the handle of the index-th variable, in the body of that name."""

    index: int
    operation: str
    node: str
    body: str

    def __str__(self) -> str:
        return f"{self.operation} {self.node}"


def handle_uses(graph: Any, bodies: Mapping[str, Body], variables: Iterable[tf.Variable]) -> list[Use]:
    """Every use that the bodies of a FuncGraph make of every variable, in one search."""
    search = _Search(bodies)
    index_of = {id(variable.handle): index for index, variable in enumerate(variables)}
    for outer, inner in graph.captures:
        if (index := index_of.get(id(outer))) is not None:
            search.follow(index, bodies[""], (inner.op.name, 0))
    return list(dict.fromkeys(search.found))


class _Search:
    def __init__(self, bodies: Mapping[str, Body]) -> None:
        self._bodies = bodies
        self._consumers: dict[str, Mapping[Tensor, list[tuple[Any, int]]]] = {}
        self._left: dict[tuple[int, str, int], set[int]] = {}
        self.found: list[Use] = []

    def follow(self, index: int, body: Body, handle: Tensor) -> set[int]:
        """Record all uses of a handle in a body. Returns as which outputs of the body it leaves it again."""
        if body.name not in self._consumers:
            self._consumers[body.name] = body.consumers()
        leaves = {number for number, returned in enumerate(body.returned) if returned == handle}
        for node, number in self._consumers[body.name].get(handle, ()):
            if node.op in _PASSES_ON:
                passed = [(node.name, 0), (node.name, 1)] if node.op == "Switch" else [(node.name, 0)]
            elif node.op in _CALLS or node.op in _BRANCHES:
                passed = self._follow_call(index, body, node, number - (node.op in _BRANCHES))
            else:
                passed = []
                self.found.append(Use(index, node.op, node.name, body.name))
            for tensor in passed:
                leaves |= self.follow(index, body, tensor)
        return leaves

    def _follow_call(self, index: int, body: Body, node: Any, argument: int) -> list[Tensor]:
        left: set[int] = set()
        for name in _called_by(node):
            callee, visit = self._bodies.get(name), (index, name, argument)
            if callee is None:
                self.found.append(Use(index, f"unknown function {name}", node.name, body.name))
            elif visit not in self._left:
                # Before it is followed: a function may call itself.
                self._left[visit] = set()
                self._left[visit] |= self.follow(index, callee, (callee.arguments[argument], 0))
            left |= self._left.get(visit, set())
        return [(node.name, number) for number in sorted(left)]


def _called_by(node: Any) -> Iterator[str]:
    """The functions that a node calls: two for a loop, one for each branch."""
    functions = [function for value in node.attr.values() for function in (value.func, *value.list.func)]
    return (name for name in dict.fromkeys(each.name for each in functions) if name)


def _tensor_of(reference: str) -> Tensor:
    """Of `node`, `node:1` (in a graph) or `node:output:1` (in a function, where each output has a name of its own)."""
    name, _, rest = reference.partition(":")
    return name, int(rest.rpartition(":")[2] or 0)


def needed_operations(tensors: Iterable[tf.Tensor]) -> set[Any]:
    """Those that compute the tensors, and the placeholders that these start from."""
    needed: set[Any] = set()
    queue = [tensor.op for tensor in tensors]
    while queue:
        operation = queue.pop()
        if operation not in needed:
            needed.add(operation)
            queue += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return needed

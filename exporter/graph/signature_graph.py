"""The graph of a signature as plain nodes: its own body and those of the functions that it calls, read the same way.

Bodies may be edited; `trace` makes a signature of what they then hold. The signature that was given never changes.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from exporter.graph.node_definitions import copy_of
from hotdelta.tensorflow_internals import forget_colocation
from hotdelta.train.serving.trace import Signature, trace_signature

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})

# (name of a node or argument, number of the output)
Tensor = tuple[str, int]

_numbers = itertools.count()


class Body:
    """The nodes of a graph, or of a function of its library. `arguments` and `returned` are in order."""

    def __init__(
        self, nodes: Any, *, arguments: Sequence[str], returned: Sequence[str], function: Any = None
    ) -> None:
        self.name = function.signature.name if function is not None else ""
        self.nodes = nodes
        self.arguments = arguments
        self.returned = [tensor_of(reference) for reference in returned]
        self._function = function

    def reference(self, node: str, output: str = "output") -> str:
        """How an input names the only output of a node, which the operation's definition calls `output`."""
        return node if self._function is None else f"{node}:{output}:0"

    def consumers(self) -> Mapping[Tensor, list[tuple[Any, int]]]:
        """For each tensor the nodes that take it, and as which input."""
        found: dict[Tensor, list[tuple[Any, int]]] = defaultdict(list)
        for node in self.nodes:
            for number, reference in enumerate(node.input):
                if not reference.startswith("^"):
                    found[tensor_of(reference)].append((node, number))
        return found

    def replace_nodes(self, nodes: Sequence[Any]) -> None:
        kept = [copy_of(node) for node in nodes]
        del self.nodes[:]
        self.nodes.extend(kept)

    def forget(self, nodes: Collection[str]) -> None:
        """The end of a function no longer waits for these."""
        if self._function is None:
            return
        for output, node in list(self._function.control_ret.items()):
            if node in nodes:
                del self._function.control_ret[output]
                self._function.signature.control_output.remove(output)


class SignatureGraph:
    """A copy of a traced signature's graph. `bodies` are by name; that of the signature itself is ""."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._function = signature.function
        graph = self._function.graph
        self._definition = graph.as_graph_def()
        main = Body(
            self._definition.node,
            arguments=[tensor.op.name for tensor in graph.inputs],
            returned=[tensor.name for tensor in graph.outputs],
        )
        called = map(_body_of, self._definition.library.function)
        self.bodies = {body.name: body for body in (main, *called)}

    def captured(self, variables: Sequence[tf.Variable]) -> Iterator[tuple[int, str]]:
        """(index of the variable, argument of the signature's own body that is its handle)"""
        index_of = {id(variable.handle): index for index, variable in enumerate(variables)}
        for outer, inner in self._function.graph.captures:
            if (index := index_of.get(id(outer))) is not None:
                yield index, inner.op.name

    def callees(self, node: Any) -> list[Body]:
        """The functions that a node calls: two for a loop, one for each branch."""
        functions = [function for value in node.attr.values() for function in (value.func, *value.list.func)]
        return [self.bodies[name] for name in dict.fromkeys(each.name for each in functions) if name]

    def trace(self) -> Signature:
        """The signature as its bodies now say, with the inputs, outputs and captures of the one that was given.

        It can be saved, and what is loaded again can be called. It cannot be called in this process: the functions
        that it calls are in its graph alone, and not among those that TensorFlow knows for eager execution.
        """
        graph = self._function.graph
        definition = _with_new_names(self._definition)
        names = sorted(self._function.structured_outputs)

        def call(inputs: Sequence[tf.Tensor]) -> Mapping[str, tf.Tensor]:
            capture = tf.compat.v1.get_default_graph().capture
            fed = {inner.name: capture(outer) for outer, inner in graph.captures}
            given = [tensor.name for tensor in graph.inputs if tensor.name not in fed]
            fed.update(zip(given, inputs, strict=True))
            returned = [tensor.name for tensor in graph.outputs]
            outputs = tf.graph_util.import_graph_def(definition, fed, returned, name="")
            return dict(zip(names, outputs, strict=True))

        return trace_signature(call, self._signature.input_specs)


def tensor_of(reference: str) -> Tensor:
    """Of `node`, `node:1` (in a graph) or `node:output:1` (in a function, where each output has a name of its own)."""
    name, _, rest = reference.partition(":")
    return name, int(rest.rpartition(":")[2] or 0)


def _body_of(function: Any) -> Body:
    return Body(
        function.node_def,
        arguments=[argument.name for argument in function.signature.input_arg],
        returned=[function.ret[argument.name] for argument in function.signature.output_arg],
        function=function,
    )


def _with_new_names(definition: Any) -> Any:
    """The process knows functions by name already, and would not take others of the same names."""
    copied = copy_of(definition)
    suffix = f"_rows_{next(_numbers)}"
    nodes = [*copied.node]
    for function in copied.library.function:
        function.signature.name += suffix
        nodes.extend(function.node_def)
    for node in nodes:
        # Colocation: the node that is named may be gone.
        forget_colocation(node)
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                if called.name:
                    called.name += suffix
    del copied.library.gradient[:]
    return copied

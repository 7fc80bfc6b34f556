"""The graph of a signature as plain nodes: its own body and those of the functions that it calls, read the same way.

Bodies may be edited; `trace` makes a signature of what they then hold. The signature that was given never changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from exporter.graph.node_definitions import copy_of
from hotdelta.tensorflow_internals import forget_colocation
from hotdelta.train.serving.trace import Signature, trace_signature
from hotdelta.train.tables.graph_walk import Body, Use, bodies_of, handle_uses

_numbers = itertools.count()


class EditableBody(Body):
    def reference(self, node: str, output: str = "output") -> str:
        """How an input names the only output of a node, which the operation's definition calls `output`."""
        return node if self.function is None else f"{node}:{output}:0"

    def replace_nodes(self, nodes: Sequence[Any]) -> None:
        kept = [copy_of(node) for node in nodes]
        del self.nodes[:]
        self.nodes.extend(kept)

    def forget(self, nodes: Collection[str]) -> None:
        """The end of a function no longer waits for these."""
        if self.function is None:
            return
        for output, node in list(self.function.control_ret.items()):
            if node in nodes:
                del self.function.control_ret[output]
                self.function.signature.control_output.remove(output)


class SignatureGraph:
    """A copy of a traced signature's graph. `bodies` are by name; that of the signature itself is ""."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._function = signature.function
        self._definition = self._function.graph.as_graph_def()
        self.bodies = bodies_of(self._function.graph, self._definition, EditableBody)

    def uses(self, variables: Sequence[tf.Variable]) -> list[Use]:
        """Every use of every variable, as the bodies are now."""
        return handle_uses(self._function.graph, self.bodies, variables)

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

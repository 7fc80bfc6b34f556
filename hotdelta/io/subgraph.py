"""The part of a signature that computes some of its outputs: fewer operations, fewer variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from hotdelta.train.serving.trace import Signature
from hotdelta.train.tables.graph_walk import needed_operations


class Subgraph:
    """What of a signature its outputs `targets` need."""

    def __init__(self, signature: Signature, targets: Sequence[str]) -> None:
        whole = signature.function
        self._fetches = {name: _computed(whole.structured_outputs[name]) for name in targets}
        operations = needed_operations(self._fetches.values())
        specs = signature.spec.inputs
        inputs = {spec.name: tensor for spec, tensor in zip(specs, whole.inputs, strict=False)}
        self._inputs = {name: tensor for name, tensor in inputs.items() if tensor.op in operations}
        self._captured = [(outer, inner) for outer, inner in whole.graph.captures if inner.op in operations]
        handles = {id(outer) for outer, _ in self._captured}
        self._variables = [variable for variable in whole.variables if id(variable.handle) in handles]
        self._definition = tf.compat.v1.graph_util.extract_sub_graph(
            whole.graph.as_graph_def(), [tensor.op.name for tensor in self._fetches.values()]
        )

    @property
    def needed_inputs(self) -> tuple[str, ...]:
        return tuple(self._inputs)

    def call(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The outputs. Only while a function is traced, which then captures only the variables that this needs."""
        graph = tf.compat.v1.get_default_graph()
        for variable in self._variables:
            graph.watch_variable(variable)
        given = {tensor.name: inputs[name] for name, tensor in self._inputs.items()}
        given |= {inner.name: graph.capture(outer) for outer, inner in self._captured}
        wanted = [tensor.name for tensor in self._fetches.values()]
        found = tf.graph_util.import_graph_def(self._definition, given, wanted, name="")
        return dict(zip(self._fetches, found, strict=True))


def _computed(output: tf.Tensor) -> tf.Tensor:
    """The tensor behind an output. The output itself waits, by control inputs, for all that the function does."""
    while output.op.type == "Identity" and output.op.control_inputs:
        output = output.op.inputs[0]
    return output

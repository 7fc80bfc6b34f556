"""The inference model of a TF1 graph, with the values that a Session holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from exporter.export import ExportOptions
from hotdelta.compat.v1.graph_export import GraphSignature, export_session
from hotdelta.compat.v1.saved_variables import find_saved_variables
from hotdelta.errors import ConfigurationError
from hotdelta.io.subgraph import needed_operations
from hotdelta.train.serving_trace import DEFAULT_SIGNATURE


def save_session(
    target: Path, feeds: Sequence[str], targets: Sequence[Any], session: Any, *, is_incremental: bool
) -> Path:
    """Inputs are named as their placeholders, outputs as their operations.

    Only what leads to the outputs is exported, with its variables; one that follows a chain has all that are served,
    because its deltas carry them.
    """
    graph = session.graph
    outputs = {tensor.op.name: tensor for tensor in (_find(graph, wanted) for wanted in targets)}
    inputs = {name: _find(graph, name) for name in feeds}
    needed = needed_operations(outputs.values())
    _refuse_missing_inputs(needed, inputs)
    return export_session(
        session,
        {DEFAULT_SIGNATURE: GraphSignature(inputs, outputs)},
        target,
        ExportOptions(save_incr_model=is_incremental),
        keys=None if is_incremental else _variables_among(needed, graph),
    )


def _variables_among(operations: Collection[Any], graph: Any) -> set[str]:
    with graph.as_default():
        saved = find_saved_variables(tf.compat.v1.global_variables())
    return {item.key for item in saved if any(part.variable.op in operations for part in item.parts)}


def _refuse_missing_inputs(operations: Collection[Any], inputs: Mapping[str, tf.Tensor]) -> None:
    given = {tensor.op for tensor in inputs.values()}
    missing = sorted(
        operation.name
        for operation in operations
        if operation.type == "Placeholder" and operation not in given
    )
    if missing:
        raise ConfigurationError(
            f"the targets cannot be computed from {', '.join(inputs)} alone",
            hint=f"name more inputs: {', '.join(missing)}",
        )


def _find(graph: Any, wanted: Any) -> tf.Tensor:
    if not isinstance(wanted, str):
        return wanted
    try:
        return graph.get_tensor_by_name(wanted if ":" in wanted else f"{wanted}:0")
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f"the graph of the Session has no tensor {wanted!r}",
            hint="name placeholders and operations as tensor.op.name does",
        ) from error

"""The inference model of a TF1 graph, with the values that a Session holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from exporter.export import ExportOptions
from hotdelta.compat.v1.graph.saved_variables import find_saved_variables, split_strings
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_session
from hotdelta.compat.v1.serving.rewrite import refuse_updates
from hotdelta.errors import ConfigurationError
from hotdelta.io.session_state import raw_session
from hotdelta.train.serving.trace import DEFAULT_SIGNATURE
from hotdelta.train.tables.graph_walk import needed_operations


def save_session(
    target: Path, feeds: Sequence[Any], targets: Sequence[Any], session: Any, *, is_incremental: bool
) -> Path:
    """Inputs are named as their placeholders, outputs as their operations.

    Only what leads to the outputs is exported, with its variables.
    """
    session = raw_session(session)
    graph = session.graph
    outputs = _by_name(_find(graph, wanted) for wanted in targets)
    inputs = _by_name(_find(graph, wanted) for wanted in feeds)
    signature = GraphSignature(inputs, outputs)
    needed = needed_operations(signature.outputs.values())
    refuse_updates(needed, signature.outputs.values())
    _refuse_missing_inputs(needed, inputs)
    return export_session(
        session,
        {DEFAULT_SIGNATURE: signature},
        target,
        ExportOptions(save_incr_model=is_incremental),
        keys=_variables_among(needed, graph),
    )


def _variables_among(operations: Collection[Any], graph: Any) -> set[str]:
    with graph.as_default():
        saved = find_saved_variables(split_strings(tf.compat.v1.global_variables())[0])
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
            f"the targets cannot be computed from {', '.join(inputs) or 'nothing'} alone",
            hint=f"name more inputs: {', '.join(missing)}",
        )


def _by_name(tensors: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tensor in tensors:
        if found.setdefault(tensor.op.name, tensor) is not tensor:
            raise ConfigurationError(
                f"{found[tensor.op.name].name!r} and {tensor.name!r} would have the same name",
                hint="give each a name of its own with tf.identity(tensor, name=...)",
            )
    return found


def _find(graph: Any, wanted: Any) -> Any:
    if isinstance(wanted, tf.Tensor | tf.Variable):
        return wanted
    if isinstance(wanted, tf.Operation):
        raise ConfigurationError(
            f"{wanted.name!r} is an operation, which is neither a tensor nor computes one",
            hint="give the tensors that a prediction computes, and no train_op",
        )
    if not isinstance(wanted, str):
        raise ConfigurationError(
            f"{wanted!r} is neither a tensor of the graph nor the name of one",
            hint="give placeholders as inputs, and as targets the tensors that a prediction computes",
        )
    try:
        return graph.get_tensor_by_name(wanted if ":" in wanted else f"{wanted}:0")
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f"the graph of the Session has no tensor {wanted!r}",
            hint="name placeholders and operations as tensor.op.name does",
        ) from error

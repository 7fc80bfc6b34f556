"""The inference model of a TF1 graph, with the values that a Session holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from exporter.export import ExportOptions
from hotdelta.compat.v1.graph_export import GraphSignature, export_session
from hotdelta.train.serving_trace import DEFAULT_SIGNATURE


def save_session(
    target: Path, feeds: Sequence[str], targets: Sequence[Any], session: Any, *, is_incremental: bool
) -> Path:
    """Inputs are named as their placeholders, outputs as their operations."""
    graph = session.graph
    tensors = [_find(graph, wanted) for wanted in targets]
    signature = GraphSignature(
        {name: _find(graph, name) for name in feeds}, {tensor.op.name: tensor for tensor in tensors}
    )
    options = ExportOptions(save_incr_model=is_incremental)
    return export_session(session, {DEFAULT_SIGNATURE: signature}, target, options)


def _find(graph: Any, wanted: Any) -> tf.Tensor:
    if not isinstance(wanted, str):
        return wanted
    return graph.get_tensor_by_name(wanted if ":" in wanted else f"{wanted}:0")

"""How much memory the largest tensor has that a prediction touches: a table's worth when a table was read whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from exporter.loaded_graph import LoadedGraph

v1 = tf.compat.v1


def largest_tensor_bytes(graph: LoadedGraph, signature: str, inputs: Mapping[str, Any]) -> int:
    """Of all outputs of all operations that ran, after TensorFlow has optimised the graph."""
    definition = graph._signatures[signature]
    fetches = [tensor.name for tensor in definition.outputs.values()]
    feeds = {definition.inputs[name].name: value for name, value in inputs.items()}
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    graph._session.run(fetches, feeds, options=options, run_metadata=metadata)
    found: int = max(
        output.tensor_description.allocation_description.requested_bytes
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for output in node.output
    )
    return found

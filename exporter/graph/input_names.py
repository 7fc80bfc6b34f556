"""Gives the inputs of a written SavedModel the names that callers use, where the graph has others for them.

TensorFlow finds inputs by the keys of a signature (Sessions, TensorFlow Serving) or the keywords of a function (eager).
Both may be any text, but it writes only names that it can give to a placeholder, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotdelta.tensorflow_internals import SavedModel
from hotdelta.train.serving.trace import Signature, graph_name


def name_inputs(directory: Path, signatures: Mapping[str, Signature]) -> None:
    """The fingerprint that TensorFlow left beside the graph does not fit it any more then."""
    renamed = {name: names for name, each in signatures.items() if (names := _other_names(each))}
    if not renamed:
        return
    path = directory / "saved_model.pb"
    saved_model = SavedModel.FromString(path.read_bytes())
    (meta_graph,) = saved_model.meta_graphs
    nodes = meta_graph.object_graph_def.nodes
    functions = _children(nodes, _children(nodes, 0)["signatures"])
    for signature, names in renamed.items():
        _rename_keys(meta_graph.signature_def[signature].inputs, names)
        keywords = nodes[functions[signature]].bare_concrete_function.argument_keywords
        keywords[:] = [names.get(keyword, keyword) for keyword in keywords]
    path.write_bytes(saved_model.SerializeToString(deterministic=True))


def _other_names(signature: Signature) -> dict[str, str]:
    """The name for each graph name that is another."""
    names = {graph_name(each.name): each.name for each in signature.spec.inputs}
    return {old: new for old, new in names.items() if old != new}


def _children(nodes: Any, node: int) -> dict[str, int]:
    return {child.local_name: child.node_id for child in nodes[node].children}


def _rename_keys(inputs: Any, names: Mapping[str, str]) -> None:
    for old, new in names.items():
        inputs[new].CopyFrom(inputs[old])
        del inputs[old]

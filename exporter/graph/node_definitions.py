"""Nodes of a graph as protocol buffers: how one is made, and what one says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hotdelta.tensorflow_internals import find_operation_definition

v1 = tf.compat.v1

# They look rows up and add them up in one operation, as tf.nn.embedding_lookup_sparse does.
SEGMENT_LOOKUPS = frozenset(
    f"SparseSegment{kind}{tail}" for kind in ("Sum", "Mean", "SqrtN") for tail in ("", "WithNumSegments")
)


def make_node(name: str, operation: str, inputs: Sequence[str], **attributes: Any) -> Any:
    node = v1.NodeDef(name=name, op=operation, input=list(inputs))
    for attribute, value in attributes.items():
        node.attr[attribute].CopyFrom(_attribute(value))
    return node


def copy_of(definition: Any) -> Any:
    copied = type(definition)()
    copied.CopyFrom(definition)
    return copied


def batch_dims(node: Any) -> int:
    """Asking a protocol buffer for an attribute that is not there would add it."""
    return int(node.attr["batch_dims"].i) if "batch_dims" in node.attr else 0


def index_dtype(node: Any) -> tf.DType:
    """Of a node that gathers, also of one that adds up what it gathers: the dtype of its ids."""
    return tf.as_dtype(node.attr["Tidx" if node.op in SEGMENT_LOOKUPS else "Tindices"].type)


def has_gather_ids(node: Any) -> bool:
    """Whether the ids of a node that gathers are of a dtype that variables are gathered by too."""
    return index_dtype(node) in (tf.int32, tf.int64)


def producer_of(reference: str) -> str:
    """The name of the node that an input of another is an output of, or that the other waits for."""
    return reference.removeprefix("^").partition(":")[0]


def waits(node: Any) -> list[str]:
    """The inputs that are no values: nodes that have to run before this one."""
    return [reference for reference in node.input if reference.startswith("^")]


def is_zero(node: Any) -> bool:
    return bool(node.op == "Const" and not tf.make_ndarray(node.attr["value"].tensor).any())


def is_stateful(node: Any) -> bool:
    """Whether it does anything but compute its outputs; of an operation that is not known: yes."""
    definition = find_operation_definition(node.op)
    return definition is None or bool(definition.is_stateful)


def _attribute(value: Any) -> Any:
    if isinstance(value, bool):
        return v1.AttrValue(b=value)
    if isinstance(value, int):
        return v1.AttrValue(i=value)
    if isinstance(value, tf.DType):
        return v1.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, tf.TensorShape):
        return v1.AttrValue(shape=value.as_proto())
    return v1.AttrValue(tensor=value)

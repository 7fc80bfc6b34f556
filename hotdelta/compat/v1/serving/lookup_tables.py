"""Look-up tables of a graph (vocabularies), built again as the tracked resources that a SavedModel wants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1

Initializers = dict[str, Any]


def read_initializers(graph: Any, names: Iterable[str]) -> Initializers:
    """For each look-up table of the graph what fills it. Raises ConfigurationError, naming the table."""
    found: Initializers = {}
    for name in names:
        handle = graph.get_operation_by_name(name).outputs[0]
        fillers = [operation for operation in handle.consumers() if operation.type in _READERS]
        if len(fillers) != 1:
            raise ConfigurationError(
                f"look-up table {name!r} is not filled by one initializer, so it cannot be exported",
                hint="use a vocabulary list or a vocabulary file",
            )
        found[name] = _READERS[fillers[0].type](graph, fillers[0])
    return found


def make_lookup_tables(initializers: Initializers) -> dict[str, Any]:
    """Eagerly. What a look-up answers for unknown keys is in the graph, not in the table."""
    tables = {}
    for name, make in initializers.items():
        initializer = make()
        default = "" if initializer.value_dtype == tf.string else -1
        tables[name] = tf.lookup.StaticHashTable(initializer, default)
    return tables


def _from_tensors(graph: Any, operation: Any) -> Any:
    with v1.Session(graph=graph) as session:
        keys, values = session.run(list(operation.inputs)[1:3])
    dtypes = [tensor.dtype for tensor in operation.inputs[1:3]]
    return lambda: tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys, dtypes[0]), tf.constant(values, dtypes[1])
    )


def _from_file(graph: Any, operation: Any) -> Any:
    with v1.Session(graph=graph) as session:
        path = session.run(operation.inputs[1]).decode()
    table = operation.inputs[0].op
    return lambda: tf.lookup.TextFileInitializer(
        path,
        tf.as_dtype(table.get_attr("key_dtype")),
        operation.get_attr("key_index"),
        tf.as_dtype(table.get_attr("value_dtype")),
        operation.get_attr("value_index"),
        vocab_size=_size(operation.get_attr("vocab_size")),
        delimiter=operation.get_attr("delimiter").decode(),
    )


def _size(size: int) -> int | None:
    return size if size > 0 else None


_READERS = {
    "LookupTableImportV2": _from_tensors,
    "InitializeTableV2": _from_tensors,
    "InitializeTableFromTextFileV2": _from_file,
}

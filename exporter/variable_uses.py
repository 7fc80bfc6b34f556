"""What predictions may not do with variables: read a whole table each time, or change what training alone may change.

Only row gathers and shape queries may touch a table: once a row was updated in place, each whole read copies it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import tensorflow as tf

from exporter.handle_uses import Use, handle_uses
from hotdelta.chain.schema import Schema, VariableSpec
from hotdelta.errors import ConfigurationError
from hotdelta.train.serving_module import ServingModule

_ROW_READS = frozenset({"ResourceGather", "ResourceGatherNd", "VariableShape"})
_WHOLE_READ = "ReadVariableOp"
_WRITES = ("Assign", "Resource")


def refuse_writes(module: ServingModule, schema: Schema) -> None:
    """Raises ConfigurationError, naming the variable and the operation, when a signature changes a weight.

    Integers may change: they are the seeds of what is random.
    """
    for spec, name, use in _uses(module, schema):
        if tf.as_dtype(spec.dtype).is_floating and _is_write(use):
            raise ConfigurationError(
                f"signature {name!r} changes variable {spec.key!r} with each prediction (operation {use})",
                hint="call layers with training=False, and leave assignments to the training step",
            )


def refuse_whole_table_reads(module: ServingModule, schema: Schema, *, allowed: Collection[str] = ()) -> None:
    """Raises ConfigurationError, naming the table and the operation, unless the table is `allowed` by key."""
    unknown = sorted(set(allowed) - {table.key for table in schema.tables})
    if unknown:
        raise ConfigurationError(
            f"{unknown[0]!r} is not a table",
            hint=f"tables: {', '.join(table.key for table in schema.tables)}",
        )
    for spec, name, use in _uses(module, schema):
        if spec.is_table and spec.key not in allowed and _is_whole_read(use):
            raise ConfigurationError(
                f"signature {name!r} reads all of table {spec.key!r} for each prediction (operation {use})",
                hint="look rows up with hotdelta.keras.Embedding or tf.gather(variable, ids); if the whole table "
                f"is meant, allow it: --allow-whole-table-read {spec.key}",
            )


def _is_write(use: Use) -> bool:
    return use.operation.startswith(_WRITES) and use.operation not in _ROW_READS


def _is_whole_read(use: Use) -> bool:
    """What nothing uses is pruned."""
    return use.operation not in _ROW_READS and (use.operation != _WHOLE_READ or use.is_used)


def _uses(module: ServingModule, schema: Schema) -> Iterator[tuple[VariableSpec, str, Use]]:
    for name, function in module.signatures.items():
        for index, use in handle_uses(function, module.variables):
            yield schema.variables[index], name, use

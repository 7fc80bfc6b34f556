"""What predictions may not do with variables: read a whole table each time, or change what training alone may change.

Only row gathers and shape queries may touch a table: once a row was updated in place, each whole read copies it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

import tensorflow as tf

from exporter.graph.row_lookups import gather_rows, guard_sums
from exporter.graph.signature_graph import SignatureGraph
from hotdelta.chain.format.schema import Schema
from hotdelta.errors import ConfigurationError
from hotdelta.train.serving.module import ServingModule
from hotdelta.train.serving.trace import Signature
from hotdelta.train.tables.graph_walk import Use

_ROW_READS = frozenset({"ResourceGather", "ResourceGatherNd", "VariableShape"})
_WRITES = ("Assign", "Resource")


def make_servable(
    module: ServingModule, schema: Schema, *, allow_whole_reads: Collection[str] = ()
) -> ServingModule:
    """The module, with signatures that look rows up in tables instead of reading them, where that can be done.

    Raises ConfigurationError, naming the variable and the operation, when a signature changes a weight, or reads a
    whole table that is not allowed by key. Integers may change: they are the seeds of what is random.
    """
    _refuse_unknown(allow_whole_reads, schema)
    signatures = {}
    for name, signature in module.signatures.items():
        signatures[name], uses = _with_row_lookups(signature, module.variables, schema)
        _refuse_writes(name, uses, schema)
        _refuse_whole_reads(name, uses, schema, allow_whole_reads)
    return replace(module, signatures=signatures)


def table_lookups(module: ServingModule, schema: Schema) -> dict[str, str]:
    """The key of the table that each look-up reads, by function and node: how TensorFlow names it when it fails.

    A look-up in a function that is called with several tables is left out.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for signature in module.signatures.values():
        uses = SignatureGraph(signature).uses(module.variables)
        own = tf.compat.as_str(signature.function.name)
        for use in _of_tables(uses, schema):
            found[f"{use.body or own}/{use.node}"].add(schema.variables[use.index].key)
    return {lookup: keys.pop() for lookup, keys in found.items() if len(keys) == 1}


def _with_row_lookups(
    signature: Signature, variables: tuple[tf.Variable, ...], schema: Schema
) -> tuple[Signature, list[Use]]:
    """The signature, traced again where something had to be rewritten, and what it does with its variables."""
    graph = SignatureGraph(signature)
    uses = graph.uses(variables)
    tables = _of_tables(uses, schema)
    is_rewritten = gather_rows(graph, tables)
    if is_rewritten:
        uses = graph.uses(variables)
    is_guarded = bool(tables) and guard_sums(graph)
    return graph.trace() if is_rewritten or is_guarded else signature, uses


def _of_tables(uses: Iterable[Use], schema: Schema) -> list[Use]:
    return [use for use in uses if schema.variables[use.index].is_table]


def _refuse_writes(name: str, uses: Iterable[Use], schema: Schema) -> None:
    for use in uses:
        variable = schema.variables[use.index]
        is_write = use.operation.startswith(_WRITES) and use.operation not in _ROW_READS
        if is_write and tf.as_dtype(variable.dtype).is_floating:
            raise ConfigurationError(
                f"signature {name!r} changes variable {variable.key!r} with each prediction (operation {use})",
                hint="call layers with training=False, and leave assignments to the training step",
            )


def _refuse_whole_reads(name: str, uses: Iterable[Use], schema: Schema, allowed: Collection[str]) -> None:
    for use in _of_tables(uses, schema):
        key = schema.variables[use.index].key
        if use.operation not in _ROW_READS and key not in allowed:
            raise ConfigurationError(
                f"signature {name!r} reads all of table {key!r} for each prediction (operation {use})",
                hint="look rows up (an embedding layer, tf.nn.embedding_lookup, tf.gather(variable, ids)); if the "
                f"whole table is meant, allow it: `allow_whole_table_reads=[{key!r}]`",
            )


def _refuse_unknown(allowed: Collection[str], schema: Schema) -> None:
    tables = [table.key for table in schema.tables]
    unknown = sorted(set(allowed) - set(tables))
    if unknown:
        raise ConfigurationError(
            f"{unknown[0]!r} is not a table",
            hint=f"tables: {', '.join(tables) or 'none, so there is nothing to allow'}",
        )

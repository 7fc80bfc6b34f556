"""The tables of a model as its status tells of them: how many rows are in use, how many unknown keys were asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hotdelta.chain import Schema, VariableSpec
from loader.model.gate import Gate
from loader.model.live_model import KeyCounts, LiveModel
from loader.status import ServedTable


class SeenCounts:
    """Key counts for whoever may not wait, as an event loop: while an update is at the gate, those seen last."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._seen: Mapping[str, KeyCounts] = {}

    def read(self, find_model: Callable[[], LiveModel | None]) -> Mapping[str, KeyCounts]:
        """`find_model`: what is served, which is not closed while the gate is held."""
        if self._gate.try_enter():
            try:
                model = find_model()
                self._seen = model.key_counts() if model is not None else {}
            finally:
                self._gate.leave()
        return self._seen


def describe_tables(schema: Schema, counts: Mapping[str, KeyCounts]) -> tuple[ServedTable, ...]:
    """`counts`: of each table with keys, by the key of its rows."""
    of_rows = {table.rows: counts[table.rows] for table in schema.key_tables if table.rows in counts}
    of_index = {table.index: counts[table.rows] for table in schema.key_tables if table.rows in counts}
    return tuple(_describe(spec, of_rows.get(spec.key), of_index.get(spec.key)) for spec in schema.tables)


def _describe(spec: VariableSpec, rows: KeyCounts | None, index: KeyCounts | None) -> ServedTable:
    if rows is not None:
        return ServedTable(spec.key, rows.rows, spec.shape[1:], spec.dtype, spec.shape[0], rows.unknown)
    if index is not None:
        return ServedTable(spec.key, index.buckets, spec.shape[1:], spec.dtype, spec.shape[0])
    return ServedTable(spec.key, spec.shape[0], spec.shape[1:], spec.dtype)

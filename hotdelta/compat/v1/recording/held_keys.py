"""All keys of tables on parameter servers, as they are at one moment: held where they live until a full is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.embedding.table import EmbeddingTable
from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable, on_device_of
from hotdelta.compat.v1.graph.session_values import gather_rows
from hotdelta.compat.v1.graph.writers import own_operations
from hotdelta.compat.v1.recording.held_rows import HeldTensor
from hotdelta.train.tables.growth import Growth, growth_of


class HeldKeys:
    """Indexes, keys that wait, and the counts of both. Workers go on meanwhile: rows that they add are not of the full.

    So the rows of a table are read later, as many as its counts here say.
    """

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self._held: dict[int, HeldTensor] = {}
        self._counts: dict[int, tf.Tensor] = {}
        self.hold: list[tf.Operation] = []
        for table in tables:
            with on_device_of(table.rows):
                for variable in _counts(table):
                    self._hold(variable, variable.read_value())
                    self._counts[id(variable)] = self._held[id(variable)].read()
                for variable, growth in _tables_of_keys(table):
                    with own_operations():
                        rows = tf.raw_ops.ResourceGather(
                            resource=variable.handle,
                            indices=tf.range(growth.rows_in_use()),
                            dtype=variable.dtype,
                        )
                    self._hold(variable, rows)

    def _hold(self, variable: Any, value: tf.Tensor) -> None:
        held = HeldTensor(f"{variable.op.name}-all", variable.dtype, variable.shape[1:])
        self._held[id(variable)] = held
        self.hold.append(held.hold(value))

    def value(self, item: SavedVariable, part: Part) -> tf.Tensor | None:
        """What a full has of it; None: nothing is held of it, nor of its counts."""
        held = self._held.get(id(part.variable))
        if held is not None:
            return held.read()
        counts = None if item.growth is None else self._counts.get(id(item.growth.counts))
        if counts is None or item.growth is None:
            return None
        return gather_rows(item, part, tf.range(item.growth.count_in(counts)))


def _counts(table: EmbeddingTable) -> Iterator[Any]:
    yield table.counts
    if table.waiting_counts is not None:
        yield table.waiting_counts


def _tables_of_keys(table: EmbeddingTable) -> Iterator[tuple[Any, Growth]]:
    for variable in (table.index, table.waiting):
        growth = None if variable is None else growth_of(variable)
        if growth is not None:
            yield variable, growth

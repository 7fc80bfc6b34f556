"""A table with keys in a checkpoint of tf.train.Saver: of what it reserves, the rows that are in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.embedding.reserved import ReservedVariable
from hotdelta.compat.v1.embedding.variable import EmbeddingVariable
from hotdelta.compat.v1.graph.saved_variables import is_own_record, key_of
from hotdelta.compat.v1.graph.writers import own_operations
from hotdelta.tensorflow_internals import SaveableObject, SaveSpec
from hotdelta.train.tables.growth import growth_of

v1 = tf.compat.v1


class RowsInUse(SaveableObject):
    """What a Saver saves, and restores, of one variable that reserves its rows."""

    def __init__(self, variable: ReservedVariable, moment: Mapping[int, tf.Tensor]) -> None:
        self.variable = variable
        key = key_of(variable)
        growth = growth_of(variable)
        if growth is None:
            raise ValueError(f"{key} does not grow")
        rows = moment.get(id(variable))
        if rows is None:
            counts = moment.get(id(growth.counts))
            with own_operations(), tf.device(variable.device):
                in_use = growth.rows_in_use() if counts is None else growth.count_in(counts)
                rows = tf.raw_ops.ResourceGather(
                    resource=variable.handle, indices=tf.range(in_use), dtype=variable.dtype
                )
        super().__init__(variable, [SaveSpec(rows, "", key, variable.dtype, variable.device)], key)

    def restore(
        self,
        restored_tensors: Sequence[tf.Tensor],
        restored_shapes: Any,  # noqa: ARG002 - as tf.train has it
    ) -> tf.Operation:
        """As it was made, and then with these rows."""
        (rows,) = restored_tensors
        count = tf.shape(rows, out_type=tf.int64)[0]
        with own_operations(), tf.device(self.variable.device):
            with tf.control_dependencies([self.variable.initializer]):
                written = tf.raw_ops.ResourceScatterUpdate(
                    resource=self.variable.handle, indices=tf.range(count), updates=rows
                )
            with tf.control_dependencies([written]):
                return tf.group(written, *self._begun(count))

    def _begun(self, count: tf.Tensor) -> list[tf.Operation]:
        """All of a slot that was restored has begun."""
        growth = growth_of(self.variable)
        filled = None if growth is None else growth.filled_of(self.variable)
        return [] if filled is None else [filled.assign(count, read_value=False)]


class CountsOfMoment(SaveableObject):
    """The counts that belong to the keys that are saved."""

    def __init__(self, variable: Any, counts: tf.Tensor) -> None:
        self.variable = variable
        key = key_of(variable)
        super().__init__(variable, [SaveSpec(counts, "", key, variable.dtype, variable.device)], key)

    def restore(
        self,
        restored_tensors: Sequence[tf.Tensor],
        restored_shapes: Any,  # noqa: ARG002 - as tf.train has it
    ) -> tf.Operation:
        with own_operations(), tf.device(self.variable.device):
            return self.variable.assign(restored_tensors[0], read_value=False)


def with_companions(given: Any) -> Any:
    """What a Saver is given, and what the rows of its embedding variables are worth nothing without."""
    variables = list(given.values() if isinstance(given, dict) else given)
    tables = [variable.table for variable in variables if isinstance(variable, EmbeddingVariable)]
    there = {id(variable) for variable in variables}
    missing = [each for table in tables for each in table.companions if id(each) not in there]
    if isinstance(given, dict):
        return given | {key_of(each): each for each in missing}
    return [*variables, *missing]


def as_saved(given: Any, *, with_records: bool) -> Any:
    """The same, with all that reserves rows as what a Saver can save.

    `with_records`: with what tables know of their keys beside their rows. A chain restores that by itself.
    """
    given = with_companions(given)
    moment: dict[int, tf.Tensor] = {}
    if with_records:
        # Other workers may go on while a server is saved. A chain has its own way.
        variables = given.values() if isinstance(given, dict) else given
        for table in (each.table for each in variables if isinstance(each, EmbeddingVariable)):
            moment |= table.snapshot() if table.is_on_server else {}
    if isinstance(given, dict):
        return {name: _as_saved(each, moment) for name, each in given.items()}
    return [_as_saved(each, moment) for each in given if with_records or not _is_record(each)]


def _as_saved(variable: Any, moment: Mapping[int, tf.Tensor]) -> Any:
    if isinstance(variable, ReservedVariable):
        return RowsInUse(variable, moment)
    return CountsOfMoment(variable, moment[id(variable)]) if id(variable) in moment else variable


def _is_record(variable: Any) -> bool:
    return isinstance(variable, tf.Variable) and is_own_record(key_of(variable))

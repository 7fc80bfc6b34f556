"""Rows that a delta has taken, held where they live until they are written: only counts leave the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable
from hotdelta.compat.v1.graph.session_values import RowOperations, chunk_rows, gather_rows
from hotdelta.compat.v1.recording.recorder import SCOPE, PartFlags, make_flags, set_flags
from hotdelta.train.tables.row_values import Array, is_other_row


class HeldTensor:
    """A tensor that stays on its device between two calls of a Session; its first axis may have any length."""

    def __init__(self, name: str, dtype: tf.DType, shape: Sequence[int]) -> None:
        self._dtype = dtype
        self._handle = tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=[None, *shape], shared_name=f"{SCOPE}/held/{name}"
        )
        self._shape = tuple(shape)

    def hold(self, tensor: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.AssignVariableOp(resource=self._handle, value=tensor)

    def drop(self) -> tf.Operation:
        return self.hold(tf.zeros([0, *self._shape], self._dtype))

    def read(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)


class RowSet:
    """Which rows of one part are due, and which of them the delta in the making has taken.

    `take` holds the ids that it reads as flagged, and clears exactly these. The rows are read in a later call: what a
    worker writes in between is flagged again, because it sets its flag after it has written.
    """

    def __init__(self, flags: PartFlags, part: Part, name: str) -> None:
        self.flags = flags
        with tf.device(part.variable.device):
            taken = HeldTensor(f"{name}-ids", tf.int64, [])
            ids = flags.touched_ids
            with tf.control_dependencies([taken.hold(ids)]):
                self.take = flags.clearing(ids)
            self.count = tf.size(ids, out_type=tf.int64)
            self.ids = taken.read()
            self.row_numbers = self.ids + part.first_row
            self.give_back = flags.marking(self.ids)
            self.drop = taken.drop()


class HeldPartRows:
    """The rows of one part of one variable that its row set has taken, as they were when `hold` ran."""

    def __init__(self, saved: SavedVariable, part: Part, name: str, row_set: RowSet) -> None:
        with tf.device(part.variable.device):
            held = HeldTensor(f"{name}-rows", saved.dtype, saved.shape[1:])
            self.gathered = gather_rows(saved, part, row_set.ids)
            self.hold = held.hold(self.gathered)
            self.rows = held.read()
            self.drop = held.drop()


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Finds the rows of one part that differ from what was last saved, in pieces, and flags them."""

    first: tf.Tensor
    mark: tf.Operation
    rows: int
    chunk_rows: int

    def run(self, session: Any) -> None:
        for first in range(0, self.rows, self.chunk_rows):
            session.run(self.mark, {self.first: first})


class RememberedRows:
    """A copy, beside a variable, of what was last saved of it: for tables whose writers do not name their rows."""

    def __init__(self, saved: SavedVariable) -> None:
        self._saved = saved
        parts = tuple(_remembered_part(saved, part, number) for number, part in enumerate(saved.parts))
        self._copy = replace(saved, parts=parts)
        self._operations = RowOperations(self._copy)
        self.flags = tuple(make_flags(saved, part, number) for number, part in enumerate(saved.parts))

    def write(self, session: Any, values: Array) -> None:
        session.run([part.variable.initializer for part in self._copy.parts])
        self._operations.write_whole(session, values)

    def comparison(self, number: int) -> Comparison:
        saved, part, copy = self._saved, self._saved.parts[number], self._copy.parts[number]
        with tf.device(part.variable.device):
            first = tf.compat.v1.placeholder(tf.int64, [])
            ids = tf.range(first, tf.minimum(first + chunk_rows(saved), part.rows))
            is_changed = is_other_row(gather_rows(saved, part, ids), gather_rows(self._copy, copy, ids))
            mark = set_flags(self.flags[number].variable, tf.boolean_mask(ids, is_changed), 1)
        return Comparison(first, mark, part.rows, chunk_rows(saved))

    def update(self, number: int, held: HeldPartRows, row_set: RowSet) -> tf.Operation:
        """Remember what is held from now on, bit for bit the same tensor."""
        part = self._copy.parts[number]
        with tf.device(part.variable.device):
            return tf.raw_ops.ResourceScatterUpdate(
                resource=part.variable.handle, indices=row_set.ids, updates=held.gathered
            )


def _remembered_part(saved: SavedVariable, part: Part, number: int) -> Part:
    with tf.device(part.variable.device), tf.control_dependencies(None):
        variable = tf.compat.v1.Variable(
            tf.zeros([part.rows, *saved.shape[1:]], saved.dtype),
            trainable=False,
            collections=[],
            use_resource=True,
            name=f"{SCOPE}/remembered/{saved.key}/{number}",
        )
    return replace(part, variable=variable)

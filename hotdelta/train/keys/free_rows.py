"""Rows that belong to no key any more, and are dealt again before the table takes further ones into use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.tensorflow_internals import ResourceVariable
from hotdelta.train.tables.cells import cells_of, slice_of
from hotdelta.train.tables.growth import reserved

Ids = npt.NDArray[np.int64]


class FreeRows:
    """A stack of row numbers, in memory that is only reserved until rows are freed. No checkpoint holds it.

    Steps take rows from it, in a graph; between steps the training thread puts rows onto it. What was taken stays
    readable until more rows are put there.
    """

    def __init__(self, capacity: int) -> None:
        with tf.init_scope():
            # Row numbers, and how many of them there are.
            self._rows = ResourceVariable(
                lambda: reserved(capacity, (), tf.int64), shape=[None], trainable=False, name="free_rows"
            )
            self._count = ResourceVariable(tf.zeros([], tf.int64), trainable=False, name="free_row_count")
            self._begun = ResourceVariable(tf.zeros([], tf.int64), trainable=False, name="deals_under_way")

    def take(self, most: tf.Tensor) -> tf.Tensor:
        """In a graph or eagerly: so many rows, or all that there are."""
        count = self._count.read_value()
        taken = tf.minimum(most, count)
        places = tf.range(count - taken, count)
        rows = tf.raw_ops.ResourceGather(resource=self._rows.handle, indices=places, dtype=tf.int64)
        tf.raw_ops.AssignVariableOp(resource=self._count.handle, value=count - taken)
        return rows

    def put(self, rows: Ids) -> None:
        self._write(self.count, rows)

    def replace(self, rows: Ids) -> None:
        """By these rows alone."""
        self._write(0, rows)

    @property
    def count(self) -> int:
        return int(cells_of(self._count).value())

    def read(self) -> Ids:
        return self._read(0, self.count)

    def taken_since(self, count: int) -> tuple[Ids, int]:
        """The rows that were taken since there were so many, and how many there are. Not after rows were put there."""
        now = self.count
        return self._read(now, count), now

    def begin_dealing(self) -> tf.Operation | None:
        """In a graph: from here on until `end_dealing`, rows are taken and belong to no key yet."""
        one = tf.constant(1, tf.int64)
        return tf.raw_ops.AssignAddVariableOp(resource=self._begun.handle, value=one)

    def end_dealing(self) -> tf.Operation | None:
        one = tf.constant(1, tf.int64)
        return tf.raw_ops.AssignSubVariableOp(resource=self._begun.handle, value=one)

    @property
    def is_broken_off(self) -> bool:
        """Between two steps: one of them was broken off while it dealt rows."""
        return bool(cells_of(self._begun).value())

    def note_counted(self) -> None:
        """What it has left behind is known."""
        cells_of(self._begun).assign(0)

    def _write(self, first: int, rows: Ids) -> None:
        places = np.arange(first, first + len(rows), dtype=np.int64)
        cells_of(self._rows).write(places, rows)
        cells_of(self._count).assign(first + len(rows))

    def _read(self, first: int, end: int) -> Ids:
        return slice_of(self._rows, first, end)

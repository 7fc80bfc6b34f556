"""Which rows of a table that grows were touched, in a graph: a flag for each row that there may ever be.

Made with the table and not when recorders are: what a step writes inside of its functions sets these flags itself. They
are address space until rows come into use. Whoever takes a row into use sets its flag, so that it does not matter what
was in that memory.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.writers import own_operations
from hotdelta.tensorflow_internals import ResourceVariable
from hotdelta.train.rows.outside_writes import tell_also
from hotdelta.train.tables.growth import Growth, reserved

v1 = tf.compat.v1

# How often all rows were told of: all in all, when the flags were last read, and when they were last cleared.
_TOLD, _SEEN, _DONE = 0, 1, 2
_FLAGS = "_hotdelta_flags"


class ReservedFlags:
    """Of a variable, whose growth is `growth`. Any number of threads may tell of rows while one reads and clears."""

    def __init__(self, variable: Any, growth: Growth, *, name: str) -> None:
        self._growth = growth
        setattr(variable, _FLAGS, self)
        self.watch(variable)
        with v1.name_scope(None), tf.control_dependencies(None):
            self.variable = ResourceVariable(
                lambda: reserved(growth.capacity, (), tf.int8), trainable=False, name=name
            )
            # Nothing of a new table is saved: all of its rows are due.
            told_once = tf.constant([1, 0, 0], tf.int64)
            self._of_all = ResourceVariable(told_once, trainable=False, name=f"{name}_all")

    def watch(self, variable: Any) -> None:
        """Rows of it that somebody tells of are rows of these flags."""
        tell_also(variable, self.mark_all, self.mark)

    def mark(self, rows: tf.Tensor) -> tf.Operation:
        return self._set(rows, 1)

    def clear(self, rows: tf.Tensor) -> tf.Operation:
        """Of rows that `touched` gave; all rows count as cleared that it gave because somebody told of all."""
        seen = self._read_all()[_SEEN]
        return tf.group(self._set(rows, 0), self._count(_DONE, seen))

    def mark_all(self) -> tf.Operation:
        return tf.raw_ops.ResourceScatterAdd(
            resource=self._of_all.handle, indices=[_TOLD], updates=tf.constant([1], tf.int64)
        )

    def touched(self) -> tf.Tensor:
        """The numbers of those that are set."""
        numbers = self._read_all()
        told = numbers[_TOLD]
        with tf.control_dependencies([self._count(_SEEN, told)]):
            # Before the flags: a row that comes into use meanwhile has its turn the next time.
            in_use = tf.range(self._growth.rows_in_use())
        with own_operations():
            flags = tf.raw_ops.ResourceGather(resource=self.variable.handle, indices=in_use, dtype=tf.int8)
        is_set = tf.logical_or(tf.not_equal(flags, 0), told > numbers[_DONE])
        return tf.reshape(tf.where(is_set), [-1])

    def reset(self) -> tf.Operation:
        """None is set. Before the table has values this does nothing."""

        def clear() -> tf.Tensor:
            told = self._read_all()[_TOLD]
            rows = tf.range(self._growth.rows_in_use())
            done = [self._set(rows, 0), self._count(_SEEN, told), self._count(_DONE, told)]
            with tf.control_dependencies(done):
                return tf.constant(True)

        has_values = tf.raw_ops.VarIsInitializedOp(resource=self._growth.counts.handle)
        return tf.cond(has_values, clear, lambda: tf.constant(False)).op

    def _read_all(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self._of_all.handle, dtype=tf.int64)

    def _count(self, place: int, number: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self._of_all.handle, indices=[place], updates=tf.reshape(number, [1])
        )

    def _set(self, rows: tf.Tensor, value: int) -> tf.Operation:
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self.variable.handle, indices=rows, updates=tf.constant(value, tf.int8)
        )


def flags_of(variable: Any) -> ReservedFlags | None:
    """None: the variable has none, or it does not grow."""
    return getattr(variable, _FLAGS, None)

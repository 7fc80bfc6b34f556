"""Which rows of one table training has touched: a set of row ids, recorded in-graph and taken between steps."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hotdelta.errors import ConfigurationError

Ids = NDArray[np.int64]

_BLOCK_BITS = 10
_BLOCK_ROWS = 1 << _BLOCK_BITS
_WORD_FLAGS = 8


class TouchedRows:
    """The set of row ids that training touched since they were last taken.

    Two levels of flags: one per row, and one per block of rows that says "look here", so that taking costs the
    touched blocks and not the table. A third flag stands for every row.

    Any number of threads may record while one takes, and no row is lost. A recorder writes the row, then sets the
    row's flag, then its block's flag; `take` clears the flags of the blocks that it read as set, then reads the rows'
    flags in them, then clears exactly the flags that it read as set; its caller gathers the rows after that. So:

    - A row's flag set before `take` reads it is taken, whatever becomes of its block's flag: at worst a block stays
      marked that has nothing in it.
    - A row's flag set after that read is not cleared unless it was already set; its block's flag follows it, after
      `take` cleared the block's, and the next `take` looks there.
    - A row's flag that was already set, and is set again between the read and the clearing, is cleared; but its row
      was written before, and the caller gathers after: the row that it gets is the new one.

    The same argument holds for the flag of every row. Setting a flag stores one byte, so neighbours do not disturb
    each other.
    """

    def __init__(self, rows: int, *, name: str) -> None:
        if rows < 1:
            raise ConfigurationError(f"table {name} has {rows} rows", hint="a table needs at least one row")
        self.rows = rows
        self.name = name
        blocks = -(-rows // _BLOCK_ROWS)
        with tf.init_scope():
            self._flags = _flags([blocks, _BLOCK_ROWS], f"{name}_touched_rows")
            self._blocks = _flags([blocks], f"{name}_touched_blocks")
            self._all = _flags([], f"{name}_touched_all")
        self._taking = threading.Lock()

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        return (self._flags, self._blocks, self._all)

    @tf.autograph.experimental.do_not_convert
    def record(self, ids: tf.Tensor) -> None:
        """Adds `ids` (any integer dtype and shape), in a graph or eagerly.

        In a graph, call it under `tf.control_dependencies` of the operations that wrote the rows: automatic control
        dependencies do not order operations on different variables.
        """
        ids = tf.reshape(tf.cast(ids, tf.int64), [-1])
        blocks = tf.bitwise.right_shift(ids, tf.constant(_BLOCK_BITS, tf.int64))
        marked = self._set_flags(ids, blocks, tf.ones_like(ids, tf.bool))
        with tf.control_dependencies(_operations(marked)):
            tf.raw_ops.ResourceScatterUpdate(resource=self._blocks.handle, indices=blocks, updates=True)

    @tf.autograph.experimental.do_not_convert
    def record_all(self) -> None:
        """Adds every row, in a graph or eagerly, at the cost of one flag."""
        tf.raw_ops.AssignVariableOp(resource=self._all.handle, value=True)

    def take(self) -> Ids:
        """Removes the ids that are in the set now and returns them, sorted and unique.

        The caller gathers the rows afterwards, never before. Not for use in a graph.

        Raises:
            ConfigurationError: an id was recorded that the table does not have; the other ids stay in the set.
        """
        with self._taking:
            is_all = bool(self._all.numpy())
            if is_all:
                self._all.assign(False)
            blocks = self._marked_blocks()
            tf.raw_ops.ResourceScatterUpdate(resource=self._blocks.handle, indices=blocks, updates=False)
            ids = self._flagged_in(blocks)
            self._set_flags(ids, ids >> _BLOCK_BITS, np.zeros(ids.shape, np.bool_))
        if ids.size and ids[-1] >= self.rows:
            self.give_back(ids[ids < self.rows])
            self._refuse(int(ids[-1]))
        return np.arange(self.rows, dtype=np.int64) if is_all else ids

    def give_back(self, ids: Ids) -> None:
        """Adds ids that were taken but could not be saved."""
        if ids.size and not 0 <= ids.min() <= ids.max() < self.rows:
            self._refuse(int(ids.max() if ids.min() >= 0 else ids.min()))
        if ids.size == self.rows:
            self.record_all()
        else:
            self.record(tf.constant(ids, tf.int64))

    def count(self) -> int:
        """How many ids are in the set; costs what `take` costs."""
        if self._all.numpy():
            return self.rows
        return int(self._flagged_in(self._marked_blocks()).size)

    def _set_flags(self, ids: Any, blocks: Any, values: Any) -> Any:
        places = tf.stack(
            [blocks, tf.bitwise.bitwise_and(ids, tf.constant(_BLOCK_ROWS - 1, tf.int64))], axis=1
        )
        return tf.raw_ops.ResourceScatterNdUpdate(ref=self._flags.handle, indices=places, updates=values)

    def _marked_blocks(self) -> Ids:
        marked: Ids = np.flatnonzero(self._blocks.numpy())
        return marked

    def _flagged_in(self, blocks: Ids) -> Ids:
        # Gathered, not read: a whole read of a variable that is scattered into copies all of it.
        flags = tf.raw_ops.ResourceGather(resource=self._flags.handle, indices=blocks, dtype=tf.bool).numpy()
        # Few flags are set: finding the words of eight that are not zero first is several times faster.
        words = np.flatnonzero(flags.reshape(-1).view(np.uint64))
        within = np.flatnonzero(flags.reshape(-1, _WORD_FLAGS)[words])
        found = words[within // _WORD_FLAGS] * _WORD_FLAGS + within % _WORD_FLAGS
        ids: Ids = blocks[found >> _BLOCK_BITS] * _BLOCK_ROWS + (found & (_BLOCK_ROWS - 1))
        return ids

    def _refuse(self, bad_id: int) -> None:
        raise ConfigurationError(
            f"row {bad_id} was recorded for table {self.name}, which has {self.rows} rows",
            hint="record only ids that the training step wrote",
        )


def _flags(shape: list[int], name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, tf.bool), trainable=False, name=name)


def _operations(operation: Any) -> list[Any]:
    """What `tf.control_dependencies` wants: eagerly a raw operation returns None, and has already happened."""
    return [] if operation is None else [operation]

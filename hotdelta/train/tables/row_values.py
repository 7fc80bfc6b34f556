"""Moving rows between a variable and numpy: gather some, read a slice, read all. Bits are never converted.

A whole read of a variable that was ever gathered from or scattered into copies it; a gather from one that never was
makes every later whole read a copy. So *touched* tables are only gathered from, *changed* ones only read whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.bundle import row_memory
from hotdelta.train.servers.fetching import in_this_process
from hotdelta.train.tables.replicas import copies
from hotdelta.train.tables.sharded import (
    gather_sharded,
    is_remote,
    is_sharded,
    read_remote,
    read_sharded,
    write_remote,
    write_sharded,
)

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]

# Where compat/v1/chain still finds them.
row_bytes, is_same_bits = row_memory.byte_rows, row_memory.is_same_bits

_WORDS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32}


def gather_rows(variable: tf.Variable, ids: Ids) -> Array:
    """A private copy of the given rows."""
    if is_sharded(variable) or is_remote(variable):
        return gather_sharded(variable, ids)
    with tf.device("CPU:0"):
        rows = tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=variable.dtype)
    return np.asarray(rows)


def read_slice(variable: tf.Variable, first: int, count: int) -> Array:
    """A private copy of `count` rows from `first`; only this much memory is needed."""
    return gather_rows(variable, np.arange(first, first + count, dtype=np.int64))


def read_whole(variable: tf.Variable) -> Array:
    """The whole value, without a copy when TensorFlow can share its buffer: read it, drop it, never keep it."""
    if is_sharded(variable):
        return read_sharded(variable)
    if is_remote(variable):
        return read_remote(variable)
    return np.asarray(variable.read_value())


def write_whole(variable: tf.Variable, values: Array) -> None:
    """Put the variable, and every copy of it on other devices, to these values, which nobody may change afterwards."""
    if is_sharded(variable):
        write_sharded(variable, values)
        return
    if is_remote(variable):
        write_remote(variable, values)
        return
    # Of an array, `assign` would make a copy before the copy that becomes the value.
    with in_this_process():
        tensor = tf.raw_ops.Identity(input=values)
    for copy in copies(variable):
        copy.assign(tensor)


def is_other_row(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """`differing_rows` of chain/bundle/row_memory where the rows are: in a graph, or on a server."""
    return tf.reduce_any(tf.not_equal(_words(one), _words(other)), axis=1)


def _words(rows: tf.Tensor) -> tf.Tensor:
    words = rows if rows.dtype == tf.bool else tf.bitcast(rows, _WORDS.get(rows.dtype.size, tf.int64))
    return tf.reshape(words, [tf.shape(rows)[0], -1])

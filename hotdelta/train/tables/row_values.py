"""Moving rows between a variable and numpy: gather some, read a slice, read all. Bits are never converted.

A whole read of a variable that was ever gathered from or scattered into copies it; a gather from one that never was
makes every later whole read a copy. So *touched* tables are only gathered from, *changed* ones only read whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

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


def row_bytes(values: Array) -> npt.NDArray[np.uint8]:
    """The same memory as one line of bytes per row, so that comparing compares bit patterns."""
    contiguous = np.ascontiguousarray(values)
    return (
        contiguous.reshape(len(contiguous), -1).view(np.uint8) if contiguous.size else _no_bytes(contiguous)
    )


def _no_bytes(values: Array) -> npt.NDArray[np.uint8]:
    return np.empty((len(values), 0), np.uint8)


def is_same_bits(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()

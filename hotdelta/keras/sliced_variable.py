"""Large tables that are filled slice by slice: an initializer of Keras makes two more of them on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.row_memory import row_ranges, rows_within
from hotdelta.keras_internals import MakesItsVariable
from hotdelta.train.tables.growth import reserved, write_first_rows

LEAST_BYTES = 64 * 2**20
_SLICE_BYTES = 16 * 2**20
_PHILOX = 1
# Of each block of the generator come so many float32.
_BLOCK_VALUES = 4


class SlicedVariable(MakesItsVariable, keras.Variable):
    """A variable of Keras whose initializer makes and fills the one of TensorFlow."""


def slice_maker(initializer: Any, shape: tuple[int, ...], dtype: str) -> Callable[[], tf.Variable] | None:
    """What makes a variable with the values that the initializer would give it; None: it has to do that itself."""
    is_large = len(shape) == 2 and shape[0] * shape[1] * 4 >= LEAST_BYTES
    is_known = type(initializer) is keras.initializers.RandomUniform and isinstance(initializer.seed, int)
    if not (is_large and is_known) or dtype != "float32" or tf.distribute.has_strategy():
        return None
    if shape[1] % _BLOCK_VALUES or not _is_same(initializer, shape[1]):
        return None
    return lambda: _make(initializer, shape)


def _make(initializer: Any, shape: tuple[int, ...]) -> tf.Variable:
    variable = tf.Variable(lambda: reserved(shape[0], shape[1:], tf.float32), name="embeddings")
    ranges = row_ranges(shape[0], rows_within(_SLICE_BYTES, shape[1] * 4))
    write_first_rows(variable, ((first, _rows(initializer, first, end, shape[1])) for first, end in ranges))
    return variable


def _is_same(initializer: Any, width: int) -> bool:
    """Whether the values of the second slice of a small table are those that Keras gives it."""
    return np.array_equal(initializer((8, width), "float32")[4:], _rows(initializer, 4, 8, width))


def _rows(initializer: Any, first: int, end: int, width: int) -> tf.Tensor:
    """Counter-based: what comes at a place can be made without what comes before."""
    seed = tf.constant([initializer.seed % (tf.int32.max - 1), 0], tf.int32)
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    blocks = np.array([first * width // _BLOCK_VALUES, 0], np.uint64)
    values = tf.raw_ops.StatelessRandomUniformV2(
        shape=[end - first, width], key=key, counter=counter + blocks, alg=_PHILOX, dtype=tf.float32
    )
    low, high = (tf.constant(limit, tf.float32) for limit in (initializer.minval, initializer.maxval))
    return values * (high - low) + low

"""Values of tensors that may be in another process, fetched so that only the thread that waits for them waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf


@contextmanager
def in_this_process() -> Iterator[None]:
    """Operations run here, whatever device is in scope. A device alone would be taken for one of the server there."""
    with tf.device(None), tf.device("CPU:0"):
        yield


def fetch(tensor: tf.Tensor) -> npt.NDArray[Any]:
    """The value of a tensor. Of one that is here already it is not copied.

    `numpy()` of a tensor on a server keeps Python's global lock until it is there: when the server hangs, every thread
    of this process stops, also the one that would say so. An operation on it lets go of the lock.
    """
    with in_this_process():
        return np.asarray(tf.raw_ops.Identity(input=tensor))


def here(value: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    """A constant in this process: to send it to a server keeps the lock, too."""
    with in_this_process():
        return tf.constant(value, dtype)

"""A moment of TensorFlow 2 in a process of TensorFlow 1: exporting traces functions and saves objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from hotdelta.tensorflow_internals import eager_context

v1 = tf.compat.v1


@contextmanager
def eager_mode() -> Iterator[None]:
    """Not for use beside other threads that build graphs: how shapes behave is a switch of the whole process."""
    v1.enable_v2_tensorshape()
    try:
        with eager_context(), tf.device(None):
            yield
    finally:
        v1.disable_v2_tensorshape()

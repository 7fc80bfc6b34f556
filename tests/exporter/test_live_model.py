from __future__ import annotations

import pytest
import tensorflow as tf

from exporter.signatures.variables import assign

pytestmark = pytest.mark.optimized


def test_what_is_read_before_a_write_is_not_taken_for_what_is_written() -> None:
    """With a plain assignment Grappler concludes that the variable is empty, and folds the size that was read."""
    variable = tf.Variable(tf.zeros([0], tf.int64), shape=[None])

    @tf.function(input_signature=[], autograph=False)
    def empty() -> tf.Tensor:
        size = tf.size(variable.read_value())
        with tf.control_dependencies([size]):
            emptied = assign(variable, tf.zeros([0], tf.int64))
        with tf.control_dependencies([emptied]):
            return tf.identity(size)

    variable.assign([1, 2, 3])
    assert empty().numpy() == 3
    assert empty().numpy() == 0

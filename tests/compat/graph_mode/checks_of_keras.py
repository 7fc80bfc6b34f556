"""tf.keras in a graph: what the scripts of TensorFlow 1 hand to it, and Keras 3 by itself does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from tests.compat.graph_mode.small_graphs import new_graph

LABELS = np.array([1, 0, 1, 1], "i4")
SCORES = np.array([[0.9], [0.2], [0.6], [0.4]], "f4")
CROSS_ENTROPY = -np.mean(np.log([0.9, 0.8, 0.6, 0.4]))
SQUARED_ERROR = np.mean([0.01, 0.04, 0.16, 0.36])


def test_a_loss_takes_what_tf_squeeze_leaves_without_a_rank() -> None:
    expected, losses = [], []
    fed: dict[Any, Any] = {}
    with new_graph():
        scores = tf.placeholder(tf.float32, [None, 1])
        unranked = tf.placeholder(tf.float32)
        fed |= {scores: SCORES, unranked: SCORES[:, 0]}
        for name, value in (("BinaryCrossentropy", CROSS_ENTROPY), ("MeanSquaredError", SQUARED_ERROR)):
            loss_function = getattr(tf.keras.losses, name)()
            assert isinstance(loss_function, tf.keras.losses.Loss)
            for shape, given in (([None], unranked), ([None, 1], unranked), (None, scores), (None, unranked)):
                labels = tf.placeholder(tf.int32, shape)
                fed[labels] = LABELS[:, np.newaxis] if shape == [None, 1] else LABELS
                expected.append(value)
                losses.append(tf.reduce_mean(loss_function(labels, given)))
        squeezed = tf.keras.losses.BinaryCrossentropy()(tf.constant(LABELS), tf.squeeze(scores))
        (gradient,) = tf.gradients(squeezed, scores)
        assert {loss.shape.rank for loss in (*losses, squeezed)} == {0}
        with tf.Session() as session:
            answers, slope = session.run([losses, gradient], fed)
    np.testing.assert_allclose(answers, expected, rtol=1e-5)
    assert np.all(np.sign(slope[:, 0]) == 1 - 2 * LABELS)


def test_what_has_a_rank_is_left_to_keras() -> None:
    with new_graph(), tf.Session() as session:
        losses = tf.keras.losses.BinaryCrossentropy(reduction="none")(LABELS[:, np.newaxis], SCORES)
        np.testing.assert_allclose(session.run(losses), -np.log([0.9, 0.8, 0.6, 0.4]), rtol=1e-5)
        with pytest.raises(ValueError, match="unknown rank"):
            tf.keras.losses.SparseCategoricalCrossentropy()(LABELS, tf.placeholder(tf.float32))


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("name", ["l2", "L2"])
def test_a_regularizer_takes_the_variable_of_get_variable(name: str, use_resource: bool) -> None:
    with new_graph():
        regularizer = getattr(tf.keras.regularizers, name)(0.5)
        assert isinstance(regularizer, tf.keras.regularizers.Regularizer)
        values = tf.constant([1.0, 3.0])
        tf.get_variable("kernel", initializer=values, regularizer=regularizer, use_resource=use_resource)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert session.run(tf.losses.get_regularization_loss()) == 5


def test_everything_else_is_tensorflow_s() -> None:
    assert {"layers", "losses", "regularizers"} <= set(dir(tf.keras))
    assert tf.compat.v1.keras.losses is tf.keras.losses
    assert tf.keras.losses.BinaryCrossentropy is tf.keras.losses.BinaryCrossentropy
    assert "BinaryCrossentropy" in dir(tf.keras.losses)
    assert tf.keras.layers.Dense.__module__.startswith("keras.")

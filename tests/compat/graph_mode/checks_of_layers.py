"""tf.layers: what TensorFlow 1 takes for their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from hotdelta.errors import ConfigurationError
from tests.compat.graph_mode.small_graphs import new_graph


def test_functions_and_initializers_may_be_given_by_name() -> None:
    with new_graph():
        inputs = tf.constant([[-1.0, 2.0], [3.0, -4.0]])
        by_name, by_object = (
            tf.layers.dense(inputs, 4 / 2, activation, bias_initializer=bias, kernel_initializer=kernel)
            for activation, bias, kernel in (
                ("relu", "zeros", "ones"),
                (tf.nn.relu, tf.zeros_initializer(), tf.ones_initializer),
            )
        )
        tf.layers.dense(inputs, 1, "linear", kernel_initializer="he_normal")
        normalized = tf.layers.batch_normalization(inputs, gamma_initializer="zeros")
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            named, given, zeros = session.run([by_name, by_object, normalized])
    assert named.tolist() == given.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert not np.any(zeros)


@pytest.mark.parametrize(
    "name, deviation, limit",
    [
        ("normal", 0.05, 0.3),
        ("random_normal", 0.05, 0.3),
        ("truncated_normal", 0.044, 0.1),
        ("uniform", 0.0289, 0.05),
        ("random_uniform", 0.0289, 0.05),
        ("zero", 0, 0),
        ("one", 0, 1),
    ],
)
def test_names_of_initializers_mean_what_they_do_in_keras(name: str, deviation: float, limit: float) -> None:
    with new_graph():
        tf.layers.dense(tf.ones([1, 100]), 100, kernel_initializer=name, use_bias=False)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            (kernel,) = session.run(tf.global_variables())
    assert kernel.std() == pytest.approx(deviation, rel=0.05)
    assert 0.9 * min(limit, 3 * deviation or limit) <= np.abs(kernel).max() <= limit
    assert abs(kernel.mean()) < 0.01 or name == "one"


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"activation": "rlu"}, "no activation 'rlu'"),
        ({"kernel_initializer": "global_variables"}, "no initializer 'global_variables'"),
    ],
)
def test_a_name_that_is_none_is_refused(options: dict[str, Any], problem: str) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match=problem):
        tf.layers.dense(tf.ones([2, 2]), 1, **options)


@pytest.mark.parametrize("shape", [[None, None], None])
def test_inputs_without_a_last_dimension_are_refused(shape: Any) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match="is not known, so"):
        tf.layers.dense(tf.placeholder(tf.float32, shape), 1)


def test_a_layer_that_needs_keras_2_says_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"tf\.layers\.conv1d is not here: .*Keras 3.*use tf\.nn"):
        tf.layers.conv1d  # noqa: B018

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.keras.optimizers.row_gradients import RowGradient, map_values, sum_duplicates

pytestmark = [pytest.mark.I5, pytest.mark.optimized]

ROWS = 20


def _gradient(ids: list[int]) -> tf.IndexedSlices:
    values = np.random.default_rng(0).normal(size=(len(ids), 3)).astype(np.float32)
    return tf.IndexedSlices(tf.constant(values), tf.constant(ids, tf.int64), tf.constant([ROWS, 3], tf.int64))


@settings(max_examples=40)
@given(ids=st.lists(st.integers(0, ROWS - 1), max_size=30))
def test_rows_of_equal_ids_are_summed_as_a_dense_gradient_would_sum_them(ids: list[int]) -> None:
    gradient = _gradient(ids)
    rows = sum_duplicates(gradient)
    assert sorted(rows.indices.numpy().tolist()) == sorted(set(ids))
    assert np.array_equal(tf.convert_to_tensor(rows).numpy(), tf.convert_to_tensor(gradient).numpy())


def test_a_scalar_divides_a_row_gradient_without_making_it_dense() -> None:
    rows = sum_duplicates(_gradient([3, 3, 5]))
    halved = rows / 2.0
    assert isinstance(halved, RowGradient)
    assert np.array_equal(halved.values.numpy(), rows.values.numpy() / 2)


def test_an_accumulator_added_to_a_row_gradient_makes_it_dense() -> None:
    rows = sum_duplicates(_gradient([3, 3, 5]))
    accumulator = tf.Variable(tf.ones([ROWS, 3]))
    expected = tf.convert_to_tensor(rows).numpy() + 1
    assert np.array_equal((rows + accumulator).numpy(), expected)
    assert np.array_equal((accumulator + rows).numpy(), expected)


def test_functions_of_values_see_tensors_and_keep_rows_as_rows() -> None:
    dense = tf.ones([2])
    seen: list[tf.Tensor] = []

    def double(values: list[tf.Tensor]) -> list[tf.Tensor]:
        seen.extend(values)
        return [None if value is None else 2 * value for value in values]

    sparse, missing, doubled = map_values(double, [_gradient([1, 1]), None, dense])
    assert isinstance(sparse, RowGradient)
    assert sparse.values.shape == (1, 3)
    assert missing is None
    assert np.array_equal(doubled.numpy(), [2, 2])
    assert not any(isinstance(value, tf.IndexedSlices) for value in seen)

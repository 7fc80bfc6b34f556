from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.errors import ConfigurationError
from hotdelta.train.tables.touched import TouchedRows
from tests.waiting import LIMIT_SECONDS

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

ROWS = 5000


def test_a_fresh_set_is_empty() -> None:
    touched = TouchedRows(ROWS, name="t")
    assert touched.take().size == 0
    assert touched.take().dtype == np.int64
    assert touched.count() == 0


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint8, tf.int16])
def test_ids_of_any_integer_dtype_and_shape_are_recorded(dtype: tf.DType) -> None:
    touched = TouchedRows(ROWS, name="t")
    touched.record(tf.constant([[7, 3], [3, 100]], dtype))
    touched.record(tf.constant(9, dtype))
    assert touched.count() == 4
    assert touched.take().tolist() == [3, 7, 9, 100]
    assert touched.take().size == 0


def test_recording_works_inside_a_compiled_loop() -> None:
    touched = TouchedRows(ROWS, name="t")

    @tf.function
    def steps() -> None:
        for step in tf.range(3):
            touched.record(tf.stack([step, step * 1000]))

    steps()
    assert touched.take().tolist() == [0, 1, 2, 1000, 2000]


def test_record_all_stands_for_every_row_once() -> None:
    touched = TouchedRows(ROWS, name="t")
    touched.record(tf.constant([1]))
    tf.function(touched.record_all)()
    assert touched.count() == ROWS
    assert np.array_equal(touched.take(), np.arange(ROWS))
    assert touched.take().size == 0


def test_rows_given_back_are_taken_again() -> None:
    touched = TouchedRows(ROWS, name="t")
    touched.record(tf.constant([4, 4096]))
    first = touched.take()
    touched.record(tf.constant([5]))
    touched.give_back(first)
    assert touched.take().tolist() == [4, 5, 4096]
    touched.give_back(np.arange(ROWS, dtype=np.int64))
    assert touched.count() == ROWS


def test_an_id_outside_the_table_is_refused() -> None:
    touched = TouchedRows(ROWS, name="items")
    for bad in (ROWS, -1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            touched.record(tf.constant([bad]))
        with pytest.raises(ConfigurationError, match=rf"row {bad} .* items"):
            touched.give_back(np.array([bad]))
    assert touched.take().size == 0


@settings(max_examples=30)
@given(
    batches=st.lists(st.lists(st.integers(0, ROWS - 1), max_size=40), max_size=6),
    takes=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_what_is_taken_is_what_was_recorded_since_the_last_take(
    batches: list[list[int]], takes: list[bool]
) -> None:
    touched = TouchedRows(ROWS, name="t")
    expected: set[int] = set()
    for batch, is_taken in zip(batches, takes, strict=False):
        touched.record(tf.constant(batch, tf.int64))
        expected |= set(batch)
        if is_taken:
            assert touched.take().tolist() == sorted(expected)
            expected = set()
    assert touched.take().tolist() == sorted(expected)


def test_no_update_is_lost_between_concurrent_recorders_and_a_taker() -> None:
    """Every row that was gathered last, after a take that named it, holds the last value written to it."""
    touched = TouchedRows(ROWS, name="t")
    table = tf.Variable(tf.zeros([ROWS], tf.int64))
    recorders = [
        threading.Thread(target=_recorder(touched, table, worker), name=f"w{worker}") for worker in range(2)
    ]
    saved = np.zeros(ROWS, np.int64)

    def save() -> None:
        ids = touched.take()
        saved[ids] = tf.raw_ops.ResourceGather(resource=table.handle, indices=ids, dtype=tf.int64).numpy()

    for thread in recorders:
        thread.start()
    while any(thread.is_alive() for thread in recorders):
        save()
    for thread in recorders:
        thread.join(LIMIT_SECONDS)
    save()
    assert np.array_equal(saved, table.numpy())
    assert np.count_nonzero(saved) > ROWS // 2


def test_a_row_is_recorded_after_what_the_caller_waits_for() -> None:
    touched, table = TouchedRows(ROWS, name="t"), tf.Variable(0.0)

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=table.handle, value=1.0)]):
            touched.record(ids)

    graph = step.get_concrete_function(tf.TensorSpec([None], tf.int64)).graph
    (written,) = [op for op in graph.get_operations() if op.type == "AssignVariableOp"]
    (recorded,) = [op for op in graph.get_operations() if op.type == "ResourceScatterUpdate"]
    assert written in recorded.control_inputs


def test_every_row_is_recorded_after_what_the_caller_waits_for() -> None:
    touched, table = TouchedRows(ROWS, name="t"), tf.Variable(0.0)

    @tf.function
    def step() -> None:
        with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=table.handle, value=1.0)]):
            touched.record_all()

    written, recorded = [
        op for op in step.get_concrete_function().graph.get_operations() if op.type == "AssignVariableOp"
    ]
    assert written in recorded.control_inputs


def test_every_id_recorded_once_is_taken_once_whatever_the_moment() -> None:
    """Every id is recorded a single time: nothing heals one that was lost."""
    steps, stride = 10_000, 512
    touched = TouchedRows(steps * stride, name="t")

    @tf.function
    def train() -> None:
        for step in tf.range(steps, dtype=tf.int64):
            touched.record(step * stride)

    train.get_concrete_function()
    recorder = threading.Thread(target=train, name="recorder")
    recorder.start()
    taken = []
    while recorder.is_alive():
        taken.append(touched.take())
    recorder.join(LIMIT_SECONDS)
    taken.append(touched.take())
    assert np.array_equal(np.sort(np.concatenate(taken)), np.arange(steps) * stride)


def _recorder(touched: TouchedRows, table: tf.Variable, worker: int) -> Any:
    """A trainer that owns every second row, and writes growing numbers to random ones of them."""

    @tf.function
    def train() -> None:
        for step in tf.range(1, 1500, dtype=tf.int64):
            ids = 2 * tf.random.uniform([64], 0, ROWS // 2, tf.int64) + worker
            written = tf.raw_ops.ResourceScatterUpdate(
                resource=table.handle, indices=ids, updates=tf.fill([64], step)
            )
            with tf.control_dependencies([written]):
                touched.record(ids)

    return train

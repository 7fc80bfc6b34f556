from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.keras.optimizers.adagrad import Adagrad
from hotdelta.keras.optimizers.adam import Adam, AdamW
from hotdelta.keras.optimizers.ftrl import Ftrl
from hotdelta.keras.optimizers.sgd import SGD
from hotdelta.train.tables.touched import TouchedRows
from tests.keras.optimizer_pairs import (
    ALL,
    EQUAL_EVERYWHERE,
    EQUAL_ON_TOUCHED_ROWS,
    ROWS,
    Optimizer,
    Options,
    Pair,
    bits,
    sparse_gradient,
    stock,
    table,
)

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

some_ids = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40)
any_dtype = st.sampled_from([tf.float32, tf.float16, tf.bfloat16, tf.float64])
any_shape = st.sampled_from([(ROWS, 16), (ROWS, 5), (ROWS, 2, 8)])


@settings(max_examples=40)
@given(st.sampled_from(EQUAL_EVERYWHERE), st.lists(some_ids, min_size=1, max_size=3), any_dtype, any_shape)
def test_sgd_and_adagrad_equal_keras_bit_for_bit(
    pair: Pair, batches: list[list[int]], dtype: Any, shape: tuple[int, ...]
) -> None:
    kind, options = pair
    ours, theirs = kind(0.1, **options), stock(kind)(0.1, **options)
    our_table, their_table = table(shape, dtype), table(shape, dtype)
    for seed, ids in enumerate(batches):
        gradient = sparse_gradient(ids, our_table, seed)
        ours.apply_gradients([(gradient, our_table)])
        theirs.apply_gradients([(tf.convert_to_tensor(gradient), their_table)])
    assert bits(our_table) == bits(their_table)
    for our_slot, their_slot in zip(ours.variables, theirs.variables, strict=True):
        assert bits(our_slot) == bits(their_slot), our_slot.path


@settings(max_examples=60)
@given(st.sampled_from(EQUAL_ON_TOUCHED_ROWS), some_ids, st.integers(1, 3), any_dtype, any_shape)
def test_lazy_optimizers_equal_keras_on_rows_touched_in_every_step(
    pair: Pair, ids: list[int], steps: int, dtype: Any, shape: tuple[int, ...]
) -> None:
    kind, options = pair
    ours, theirs = kind(0.1, **options), stock(kind)(0.1, **options)
    our_table, their_table, before = table(shape, dtype), table(shape, dtype), table(shape, dtype).numpy()
    for seed in range(steps):
        gradient = sparse_gradient(ids, our_table, seed)
        ours.apply_gradients([(gradient, our_table)])
        theirs.apply_gradients([(tf.convert_to_tensor(gradient), their_table)])
    touched = np.unique(ids)
    untouched = np.setdiff1d(np.arange(ROWS), touched)
    assert_equal(kind, our_table.numpy()[touched], their_table.numpy()[touched])
    assert bits(our_table.numpy()[untouched]) == bits(before[untouched])
    for our_slot, their_slot in zip(ours.variables, theirs.variables, strict=True):
        if our_slot.shape == our_table.shape:
            assert_equal(kind, our_slot.numpy()[touched], their_slot.numpy()[touched])


def assert_equal(kind: Optimizer, ours: Any, theirs: Any) -> None:
    """Bit for bit, but for the last places of Ftrl in float32 and float64, where it raises to a power."""
    tolerance = {8: 1e-14, 4: 1e-6, 2: 0.0}[ours.dtype.itemsize] if kind is Ftrl else 0.0
    if tolerance:
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    else:
        assert bits(ours) == bits(theirs)


@pytest.mark.parametrize("kind, options", ALL)
def test_a_compiled_step_equals_the_compiled_step_of_keras(kind: Optimizer, options: Options) -> None:
    ours, theirs, our_table, their_table = kind(0.1, **options), stock(kind)(0.1, **options), table(), table()
    ours.build([our_table])
    theirs.build([their_table])

    @tf.function
    def step(gradient: tf.IndexedSlices) -> None:
        ours.apply([gradient], [our_table])
        theirs.apply([tf.convert_to_tensor(gradient)], [their_table])

    ids = [3, 3, 9, 11, 9, 40]
    for seed in range(3):
        step(sparse_gradient(ids, our_table, seed))
    assert_equal(kind, our_table.numpy()[ids], their_table.numpy()[ids])


@pytest.mark.parametrize("kind, options", ALL)
def test_dense_gradients_behave_as_in_keras(kind: Optimizer, options: Options) -> None:
    ours, theirs = kind(0.1, **options), stock(kind)(0.1, **options)
    our_table, their_table = table(), table()
    for seed in range(2):
        gradient = tf.convert_to_tensor(sparse_gradient(list(range(ROWS)), our_table, seed))
        ours.apply_gradients([(gradient, our_table)])
        theirs.apply_gradients([(gradient, their_table)])
    assert bits(our_table) == bits(their_table)


@pytest.mark.parametrize(
    "clipping", [{"clipnorm": 0.5}, {"global_clipnorm": 0.5}, {"clipvalue": 0.1}, {"loss_scale_factor": 8.0}]
)
@pytest.mark.parametrize("kind, options", [(SGD, {}), (Adagrad, {})])
def test_clipping_and_loss_scale_agree_with_keras_on_the_dense_gradient(
    kind: Optimizer, options: Options, clipping: Options
) -> None:
    ours, theirs = kind(0.1, **options, **clipping), stock(kind)(0.1, **options, **clipping)
    ours_and_bias, theirs_and_bias = [(table(), tf.Variable(tf.ones([4]))) for _ in range(2)]
    gradient = sparse_gradient([3, 3, 3, 9, 11, 9], ours_and_bias[0])
    bias_gradient = tf.constant([5.0, 0.0, -3.0, 0.1])
    ours.apply_gradients(zip([gradient, bias_gradient], ours_and_bias, strict=True))
    theirs.apply_gradients(zip([tf.convert_to_tensor(gradient), bias_gradient], theirs_and_bias, strict=True))
    for our_variable, their_variable in zip(ours_and_bias, theirs_and_bias, strict=True):
        np.testing.assert_allclose(our_variable.numpy(), their_variable.numpy(), rtol=1e-6)
    untouched = np.setdiff1d(np.arange(ROWS), [3, 9, 11])
    assert bits(ours_and_bias[0].numpy()[untouched]) == bits(table().numpy()[untouched])


@pytest.mark.parametrize(
    "option",
    [
        {"weight_decay": 0.01},
        {"use_ema": True, "ema_overwrite_frequency": 2},
        {"gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 2, "global_clipnorm": 0.5, "loss_scale_factor": 4.0},
    ],
)
@pytest.mark.parametrize("kind, options", EQUAL_EVERYWHERE)
def test_options_that_write_the_whole_table_give_the_numbers_of_keras(
    kind: Optimizer, options: Options, option: Options
) -> None:
    ours, theirs = kind(0.1, **options, **option), stock(kind)(0.1, **options, **option)
    our_table, their_table = keras.Variable(table().numpy()), keras.Variable(table().numpy())

    @tf.function
    def step(gradient: tf.IndexedSlices) -> None:
        ours.apply([gradient], [our_table])

    @tf.function
    def their_step(gradient: tf.Tensor) -> None:
        theirs.apply([gradient], [their_table])

    for seed, ids in enumerate(([1, 2, 2], [2, 7, 9], [4, 4, 4], [1, 5, 9])):
        gradient = sparse_gradient(ids, our_table.value, seed)
        step(gradient)
        their_step(tf.convert_to_tensor(gradient))
    np.testing.assert_allclose(our_table.numpy(), their_table.numpy(), rtol=1e-6)


@pytest.mark.parametrize("is_excluded", [{"var_list": True}, {"var_names": True}, {}])
def test_weights_that_are_excluded_from_decay_keep_their_size(is_excluded: dict[str, bool]) -> None:
    """Rows of a table, and a dense weight beside it, as Keras has it on the dense gradient."""
    pairs = []
    for kind in (AdamW, keras.optimizers.AdamW):
        optimizer, weights = kind(0.1, weight_decay=0.5), [table(), tf.Variable(tf.ones([4]), name="bias")]
        excluded = {"var_list": weights[:1], "var_names": ["bias"]}
        optimizer.exclude_from_weight_decay(**{name: excluded[name] for name in is_excluded})
        sparse = sparse_gradient([3, 9, 3], weights[0])
        gradient = sparse if kind is AdamW else tf.convert_to_tensor(sparse)
        optimizer.apply_gradients(zip([gradient, tf.constant([5.0, 0.0, -3.0, 0.1])], weights, strict=True))
        pairs.append((weights[0].numpy()[[3, 9]], weights[1]))
    for ours, theirs in zip(*pairs, strict=True):
        assert bits(ours) == bits(theirs)


def test_a_constraint_is_applied_as_in_keras() -> None:
    def constrained() -> keras.Variable:
        variable = keras.Variable(table().numpy())
        variable.constraint = keras.constraints.MaxNorm(1.0, axis=1)
        return variable

    our_table, their_table = constrained(), constrained()
    gradient = sparse_gradient([3, 3, 5], our_table.value)
    Adagrad(0.1).apply([gradient], [our_table])
    keras.optimizers.Adagrad(0.1).apply([tf.convert_to_tensor(gradient)], [their_table])
    assert bits(our_table) == bits(their_table)


@pytest.mark.parametrize("kind, options", ALL)
def test_an_optimizer_survives_serialisation(kind: Optimizer, options: Options) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    optimizer = kind(schedule, clipnorm=1.0, name="mine", **options)
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is kind
    assert copy.get_config() == optimizer.get_config()


def test_the_state_of_an_optimizer_is_saved_and_restored(tmp_path: Path) -> None:
    optimizer, variable = Adagrad(0.1), table()
    optimizer.record_rows(variable, TouchedRows(ROWS, name="t"))
    optimizer.apply_gradients([(sparse_gradient([4, 5], variable), variable)])
    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "state"))

    restored = Adagrad(0.1)
    restored.build([variable])
    tf.train.Checkpoint(optimizer=restored).read(path).expect_partial()
    assert bits(restored._accumulators[0]) == bits(optimizer._accumulators[0])
    assert len(restored.variables) == len(keras.optimizers.Adagrad(0.1).variables) + 1


def test_a_learning_rate_schedule_is_followed() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.0])
    optimizer, variable = SGD(schedule), table()
    gradient = sparse_gradient([4], variable)
    optimizer.apply_gradients([(gradient, variable)])
    optimizer.apply_gradients([(gradient, variable)])
    moved = variable.numpy()
    assert not np.array_equal(moved, table().numpy())
    optimizer.apply_gradients([(gradient, variable)])
    assert bits(variable) == bits(moved)


def test_no_gradient_at_all_changes_nothing() -> None:
    variable = table()
    empty = tf.IndexedSlices(tf.zeros([0, 16]), tf.zeros([0], tf.int64), tf.constant([ROWS, 16], tf.int64))
    Adam(0.1, global_clipnorm=1.0).apply_gradients([(empty, variable)])
    assert bits(variable) == bits(table())


def test_an_id_outside_the_table_raises_and_names_it() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(ROWS)):
        SGD(0.1).apply_gradients([(sparse_gradient([ROWS], table()), table())])

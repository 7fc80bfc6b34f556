"""Steps whose rows nobody records for this chain: they are found by comparing, never missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Tracking
from hotdelta.errors import ConfigurationError
from tests.chain_replay import replay
from tests.keras.small_models import (
    BATCH,
    ROWS,
    assert_same,
    assert_saved,
    batches,
    by_hand,
    fit,
    live,
    manifests,
    small_model,
)

pytestmark = pytest.mark.I1

TABLE = "items/embeddings"
Step = Callable[[Any, Any], Any]


def own_step(model: keras.Model) -> Any:
    """A training function of the user's own, which nobody but he can have traced again."""

    @tf.function
    def step(ids: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(ids, training=True) - targets))
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    return step


def run(step: Step, *, seed: int) -> None:
    ids, targets = batches(1, seed=seed)
    step(tf.constant(ids), tf.constant(targets))


class DecoratedStep(keras.Model):
    """Its train_step is a tf.function, which outlives the training function of Keras that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.score = hk.Embedding(40, 4), keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.score(keras.ops.mean(self.items(ids), axis=1))

    @tf.function
    def train_step(self, data: Any) -> Any:
        ids, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(ids, training=True) - targets))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_a_function_that_was_traced_before_the_callback_came_is_compared(tmp_path: Path) -> None:
    model = small_model()
    step = own_step(model)
    run(step, seed=1)
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        run(step, seed=2)
        callback.step()
        callback.save()
        assert callback.tracking == {TABLE: Tracking.CHANGED}
        assert_saved(callback)


def test_a_function_that_records_for_an_earlier_callback_is_compared(tmp_path: Path) -> None:
    model = small_model()
    step = own_step(model)
    for seed in (1, 2):
        with by_hand(tmp_path) as callback:
            callback.resume(model)
            run(step, seed=seed)
            callback.step()
            callback.save()
            assert_saved(callback)


def test_a_decorated_train_step_that_was_traced_before_is_compared(tmp_path: Path) -> None:
    model = DecoratedStep()
    model(batches(1)[0])
    model.compile(hk.Adagrad(0.1))
    fit(model, 2)
    callback = by_hand(tmp_path)
    fit(model, 2, callback, seed=1)
    assert callback.tracking == {TABLE: Tracking.CHANGED}
    assert_saved(callback)
    callback.close()


def test_a_callback_added_after_a_first_fit_records_what_fit_traces_again(tmp_path: Path) -> None:
    model = small_model()
    fit(model, 1)
    callback = by_hand(tmp_path)
    fit(model, 1, callback)
    assert callback.tracking == {TABLE: Tracking.TOUCHED}
    callback.close()


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_two_callbacks_of_one_model_are_both_exact(tmp_path: Path, run_eagerly: bool) -> None:
    model = small_model(run_eagerly=run_eagerly)
    both = [by_hand(tmp_path / name) for name in "ab"]
    fit(model, 3, *both)
    model.train_on_batch(*(part[:BATCH] for part in batches(1, seed=3)))
    for callback in both:
        callback.save()
        assert_saved(callback)
        callback.close()


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_rows_that_another_model_trains_are_saved(tmp_path: Path, run_eagerly: bool) -> None:
    model = small_model()
    other = keras.Sequential([model.get_layer("items"), keras.layers.Flatten(), keras.layers.Dense(1)])
    other.compile(hk.SGD(0.1), "mse", run_eagerly=run_eagerly)
    with by_hand(tmp_path, scrub_saves=0) as callback:
        fit(model, 1, callback)
        fit(other, 1, seed=1)
        callback.save()
        assert callback.tracking == {TABLE: Tracking.TOUCHED}
        assert_saved(callback)


@pytest.mark.parametrize("how", ["recompiled", "reopened"])
def test_rows_that_another_model_goes_on_training_are_saved(tmp_path: Path, how: str) -> None:
    model, callback = small_model(), by_hand(tmp_path, scrub_saves=0)
    other = keras.Sequential([model.get_layer("items"), keras.layers.Flatten(), keras.layers.Dense(1)])
    other.compile(hk.SGD(0.1), "mse")
    fit(model, 1, callback)
    fit(other, 1, seed=1)
    if how == "recompiled":
        model.compile(hk.Adagrad(0.1), "mse")
    else:
        callback.close()
    fit(model, 1, callback, seed=2)
    fit(other, 1, seed=3)
    callback.save()
    assert callback.tracking == {TABLE: Tracking.CHANGED}
    assert_saved(callback)
    del other
    model.compile(hk.Adagrad(0.1), "mse")
    fit(model, 1, callback, seed=4)
    assert callback.tracking == {TABLE: Tracking.TOUCHED}
    callback.close()


def test_of_what_another_model_trains_only_the_rows_are_saved(tmp_path: Path) -> None:
    model = small_model()
    other = keras.Sequential([model.get_layer("items"), keras.layers.Flatten(), keras.layers.Dense(1)])
    other.compile(hk.SGD(0.1), "mse")
    with by_hand(tmp_path, scrub_saves=0) as callback:
        fit(model, 1, callback)
        other.train_on_batch(tf.constant([[3, 4, 4]]), tf.ones([1, 1]))
        callback.save()
        assert manifests(tmp_path)[-1].tables[TABLE].rows_changed == 2
        assert_saved(callback)


def test_what_is_not_recorded_as_demanded_is_saved_when_it_is_refused(tmp_path: Path) -> None:
    model = small_model()
    step = own_step(model)
    run(step, seed=1)
    callback = by_hand(tmp_path, tracking={TABLE: "touched"}, scrub_saves=0)
    callback.resume(model)
    run(step, seed=2)
    with pytest.raises(ConfigurationError, match="cannot be tracked as touched"):
        callback.close()
    newest, expected = manifests(tmp_path)[-1], live(callback)
    assert newest.step == 2
    assert_same(replay(tmp_path, newest.position, expected), expected)


def test_what_is_not_recorded_as_demanded_is_saved_after_a_step_that_raises(tmp_path: Path) -> None:
    model = small_model()
    step = own_step(model)
    run(step, seed=1)
    callback = by_hand(tmp_path, tracking={TABLE: "touched"}, scrub_saves=0)
    callback.resume(model)
    run(step, seed=2)
    ids, targets = batches(1)
    ids[-1] = ROWS
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(ids, targets, batch_size=BATCH, verbose=0, callbacks=[callback])
    newest, expected = manifests(tmp_path)[-1], live(callback)
    assert newest.step == 2
    assert_same(replay(tmp_path, newest.position, expected), expected)


def test_a_step_that_raises_is_followed_by_a_save_of_each_callback(tmp_path: Path) -> None:
    model, both = small_model(run_eagerly=True), [by_hand(tmp_path / name) for name in "ab"]
    ids, targets = batches(3)
    ids[-1] = ROWS
    for steps in (2, 4):
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.fit(ids, targets, batch_size=BATCH, shuffle=False, verbose=0, callbacks=both)
        assert [manifests(callback.checkpoint_dir)[-1].step for callback in both] == [steps, steps]
    for callback in both:
        assert_saved(callback)
        callback.close()


def test_a_callback_that_ends_leaves_the_writes_to_another_one(tmp_path: Path) -> None:
    model = small_model()
    first, second = by_hand(tmp_path / "first"), by_hand(tmp_path / "second", scrub_saves=0)
    fit(model, 1, first, second)
    first.close()
    model.get_layer("items").set_weights([model.get_layer("items").get_weights()[0] + 1])
    second.save()
    assert_saved(second)
    second.close()
    assert "assign" not in vars(model.get_layer("items").embeddings.value)

"""What a model goes on from that Keras does not count among its variables, and what becomes of another structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io
import hotdelta.keras as hk
from hotdelta.errors import ConfigurationError
from hotdelta.keras.serving.graph import trace_keras_model
from tests.chain_replay import replay, values_of
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

SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
FEATURES = np.random.default_rng(5).normal(5.0, 3.0, (8, 3)).astype(np.float32)


class Drift(keras.layers.Layer):
    """Goes on from a tf.Variable, a random generator and a tf.Module, of which Keras knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = tf.Variable(0.0, trainable=False)
        self.random = tf.random.Generator.from_seed(1)
        self.parts = [tf.Module()]
        self.parts[0].scale = tf.Variable(1.0)
        self.bias = self.add_weight(name="bias")
        self.alias = self.bias.value

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(1.0)
            self.parts[0].scale.assign(self.random.normal([]))
        return inputs * self.parts[0].scale + self.steps + self.bias


def drifting_model(seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1)(Drift()(inputs)))
    model.compile("sgd", "mse")
    return model


def normalizing_model(data: Any = None) -> keras.Model:
    normalize = keras.layers.Normalization(name="normalize")
    if data is not None:
        normalize.adapt(data)
    inputs = keras.Input((3,), name="features")
    model = keras.Model(
        inputs, keras.layers.Dense(1, kernel_initializer="ones", name="score")(normalize(inputs))
    )
    model.compile("sgd", "mse")
    return model


def test_what_a_layer_holds_beside_its_weights_is_resumed(tmp_path: Path) -> None:
    model, resumed = drifting_model(), drifting_model(seed=2)
    callback = by_hand(tmp_path, serving_graph=True)
    fit(model, 2, callback)
    callback.close()
    with by_hand(tmp_path, serving_graph=True) as callback:
        callback.resume(resumed)
        for trained in (model, resumed):
            trained.fit(FEATURES, FEATURES[:, :1], batch_size=4, verbose=0, shuffle=False)
        callback.save()
        drift = {key for key in live(callback) if key.startswith("drift/")}
        assert drift == {f"drift/{name}" for name in ("bias", "steps", "random/state", "parts/0/scale")}
        assert_saved(callback)
    np.testing.assert_array_equal(model(FEATURES), resumed(FEATURES))


def test_features_are_normalized_by_what_was_loaded(tmp_path: Path) -> None:
    model, resumed, loaded = normalizing_model(FEATURES), normalizing_model(), normalizing_model()
    with by_hand(tmp_path / "run", serving_graph=True) as callback:
        callback.resume(model)
    with by_hand(tmp_path / "run", serving_graph=True) as callback:
        callback.resume(resumed)
    hotdelta.io.save_persistables(model, tmp_path / "save")
    hotdelta.io.load_persistables(loaded, tmp_path / "save")
    for other in (resumed, loaded):
        np.testing.assert_array_equal(other(FEATURES), model(FEATURES))


def test_features_are_served_normalized_by_variables_that_deltas_can_change() -> None:
    model = normalizing_model(FEATURES)
    module, schema = trace_keras_model(model)
    assert {"normalize/mean", "normalize/variance"} <= {variable.key for variable in schema.variables}
    model.get_layer("normalize").adapt(FEATURES * 2)
    (served,) = module.signatures["serving_default"].function(features=tf.constant(FEATURES)).values()
    np.testing.assert_array_equal(served, model(FEATURES))


@pytest.mark.parametrize("optimizer", [hk.Adam, keras.optimizers.Adam])
def test_a_variable_may_become_a_table_in_the_middle_of_a_chain_and_back(
    tmp_path: Path, optimizer: Any
) -> None:
    expected = None
    for number, tables in enumerate(([], ["dense/kernel"], ["dense/kernel"], [], [])):
        model = small_model(optimizer(0.1), seed=number)
        with by_hand(tmp_path, tables=tables) as callback:
            callback.resume(model)
            if expected is not None:
                assert_same(live(callback), expected)
            model.train_on_batch(*batches(1, seed=number))
            callback.step()
            callback.save()
            expected = live(callback)
        loaded = small_model(optimizer(0.1), seed=9)
        hotdelta.io.load_persistables(loaded, tmp_path)
        for mine, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_layer_that_is_added_is_refused(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        model.add(keras.layers.Dropout(0.5))
        with pytest.raises(ConfigurationError, match="not the one that this chain was started with"):
            callback.save()
        model.compile(model.optimizer, "mse")
        model.train_on_batch(FEATURES, FEATURES[:, :1])
        with pytest.raises(ConfigurationError, match="not the one that this chain was started with"):
            callback.step()


def test_a_model_that_is_refused_loses_no_step(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.Input((3,), dtype="int64"), hk.Embedding(ROWS, 4, name="items"), keras.layers.Flatten()]
    )
    model.compile(hk.Adagrad(0.1), "mse")
    with by_hand(tmp_path, tracking={"items/embeddings": "touched"}, scrub_saves=0) as callback:
        callback.resume(model)
        for seed in range(3):
            model.train_on_batch(batches(1, seed=seed)[0], np.ones((BATCH, 12), np.float32))
            callback.step()
        model.add(keras.layers.Dropout(0.5))
        with pytest.raises(ConfigurationError, match="not the one that this chain was started with"):
            callback.save()
    newest, expected = manifests(tmp_path)[-1], live(callback)
    assert newest.step == 3
    assert_same(replay(tmp_path, newest.position, expected), expected)


def test_a_plain_variable_that_is_replaced_is_saved(tmp_path: Path) -> None:
    model = drifting_model()
    drift = next(layer for layer in model.layers if isinstance(layer, Drift))
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        drift.steps = tf.Variable(7.0, trainable=False)
        callback.save()
        newest = manifests(tmp_path)[-1].position
        assert replay(tmp_path, newest, ["drift/steps"]) == values_of({"drift/steps": drift.steps})
        drift.steps = tf.Variable(8.0, trainable=False)
        fit(model, 1, callback)
        assert_saved(callback)
        assert live(callback)["drift/steps"] == values_of({"drift/steps": drift.steps})["drift/steps"]


def test_the_learning_rate_of_another_optimizer_that_becomes_a_schedule_is_followed(tmp_path: Path) -> None:
    model = small_model()
    model.second = keras.optimizers.SGD(0.1)
    model.second.build(model.trainable_variables)
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        assert "optimizer/second/learning_rate" in live(callback)
        model.second.learning_rate = SCHEDULE
        callback.save()
        assert "optimizer/second/learning_rate" not in live(callback)


def test_a_learning_rate_that_becomes_a_schedule_is_followed(tmp_path: Path) -> None:
    model, resumed = small_model(), small_model(hk.Adagrad(SCHEDULE), seed=2)
    callback = by_hand(tmp_path)
    fit(model, 1, callback)
    model.optimizer.learning_rate = SCHEDULE
    fit(model, 1, callback)
    assert_saved(callback)
    expected = live(callback)
    callback.close()
    with by_hand(tmp_path) as callback:
        callback.resume(resumed)
        assert_same(live(callback), expected)


def test_another_model_is_loaded_only_when_the_first_is_closed(tmp_path: Path) -> None:
    model, other = small_model(), small_model(seed=2)
    callback = by_hand(tmp_path)
    fit(model, 2, callback)
    expected = live(callback)
    with pytest.raises(ConfigurationError, match="not closed yet"):
        callback.resume(other)
    callback.close()
    callback.resume(other)
    assert_same(live(callback), expected)
    callback.close()


@pytest.mark.parametrize("kind", ["multi", "adafactor"])
def test_what_an_optimizer_has_for_a_variable_is_keyed_by_it(tmp_path: Path, kind: str) -> None:
    def make() -> Any:
        adam = keras.optimizers.Adam(0.1)
        parts = keras.optimizers.OptimizerMap(adam, {".*embeddings": hk.Adagrad(0.1)})
        return keras.optimizers.MultiOptimizer(parts) if kind == "multi" else keras.optimizers.Adafactor(0.1)

    wanted = "optimizer/optimizers/1/momentums" if kind == "multi" else "optimizer/r"
    model, resumed = small_model(make()), small_model(make(), seed=2)
    callback = by_hand(tmp_path)
    fit(model, 2, callback)
    assert f"{wanted}/dense/kernel" in live(callback)
    expected = live(callback)
    callback.close()
    with by_hand(tmp_path) as callback:
        callback.resume(resumed)
        assert_same(live(callback), expected)


def test_a_step_that_raises_after_the_model_changed_in_fit_is_followed_by_a_save(tmp_path: Path) -> None:
    class Change(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                self.model.optimizer.learning_rate = SCHEDULE

    model, callback = small_model(run_eagerly=True), by_hand(tmp_path)
    ids, targets = batches(3)
    ids[-1] = ROWS
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(ids, targets, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[Change(), callback])
    assert manifests(tmp_path)[-1].step == 2
    callback.close()


def test_a_variable_of_no_fixed_shape_is_refused_by_name(tmp_path: Path) -> None:
    class Layer(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs

    layer = Layer()
    layer.held = tf.Variable([1.0], shape=[None])
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ConfigurationError, match=r"'layer/held' has shape \(None,\)"):
        by_hand(tmp_path).resume(model)


def test_what_changed_between_two_saves_is_in_the_next_however_many_steps_came(tmp_path: Path) -> None:
    model = small_model()
    model.second = keras.optimizers.SGD(0.1, momentum=0.9)
    with by_hand(tmp_path, save_incremental_steps=5, scrub_saves=0) as callback:
        callback.resume(model)
        for step in range(5):
            if step == 1:
                model.second.build(model.trainable_variables)
            model.train_on_batch(*batches(1, seed=step))
            callback.step()
        assert "optimizer/second/momentums/items/embeddings" in live(callback)
        callback.save()
        assert_saved(callback)

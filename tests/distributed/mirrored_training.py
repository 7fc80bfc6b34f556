"""What training under MirroredStrategy must give: deltas that are exact, and replicas that stay equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.train.loop import DeltaWriter
from hotdelta.train.rows.trace_check import inspect_trace
from hotdelta.train.tables.replicas import copies, local, primary
from tests.chain_replay import replay
from tests.distributed.mirrored_models import (
    TABLE,
    adagrad,
    assert_replicas_equal,
    mirrored_model,
    scenario,
)
from tests.keras.small_models import assert_same, assert_saved, by_hand, fit, manifests, small_model


@scenario
def row_wise_optimizers_are_recorded_and_exact(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "momentum": lambda: hk.SGD(0.1, momentum=0.9),
        "adam": lambda: hk.AdamW(0.1),
        "ftrl": lambda: hk.Ftrl(0.1),
        "clipped": lambda: hk.Adagrad(0.1, clipnorm=0.5),
        "scaled": lambda: hk.LossScaleOptimizer(hk.Adagrad(0.1)),
    }
    for name, maker in makers.items():
        with by_hand(run_dir / name) as callback:
            model = mirrored_model(strategy, maker)
            saving = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: callback.save())
            fit(model, 3, callback, saving)
            assert_saved(callback)
            assert callback.tracking == {TABLE: Tracking.TOUCHED}, name
            assert_replicas_equal(callback)
        rows = [found.rows_changed for found in manifests(run_dir / name, Kind.DELTA)]
        assert min(rows[:3]) > 0, name
        assert max(rows) <= 12, name


class WithSpareLayer(keras.Model):
    """Keras builds it before it trains, but for a layer that no step calls."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.score = hk.Embedding(40, 4), keras.layers.Dense(1)
        self.spare = keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.score(tf.reduce_sum(self.items(ids), axis=1))


@scenario
def a_model_that_is_built_by_its_first_batch_is_saved(
    strategy: tf.distribute.Strategy, run_dir: Path
) -> None:
    with strategy.scope():
        model = WithSpareLayer()
        model.compile(adagrad(), "mse")
    with by_hand(run_dir) as callback:
        fit(model, 2, callback)
        assert_saved(callback)
        assert_replicas_equal(callback)


@scenario
def stock_layers_and_optimizers_are_compared_and_exact(
    strategy: tf.distribute.Strategy, run_dir: Path
) -> None:
    with strategy.scope():
        ids = keras.Input((3,), dtype="int64", name="ids")
        hidden = keras.layers.Flatten()(keras.layers.Embedding(40, 4, name="items")(ids))
        model = keras.Model(ids, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.AdamW(0.1), "mse")
    with by_hand(run_dir, save_incremental_steps=1) as callback:
        fit(model, 4, callback)
        assert_saved(callback)
        assert callback.tracking == {TABLE: Tracking.CHANGED}
        assert_replicas_equal(callback)


@scenario
def a_step_that_writes_every_row_is_compared(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    with by_hand(run_dir, save_incremental_steps=1) as callback:
        fit(mirrored_model(strategy, lambda: hk.Adagrad(0.1, weight_decay=0.01)), 3, callback)
        assert_saved(callback)
        assert callback.tracking == {TABLE: Tracking.CHANGED}


@scenario
def a_row_that_both_replicas_touch_gets_both_gradients(
    strategy: tf.distribute.Strategy, run_dir: Path
) -> None:
    inputs, targets = np.full((4, 3), 7), np.arange(4, dtype=np.float32).reshape(4, 1)
    tables = []
    for scope in (strategy, tf.distribute.get_strategy()):
        with scope.scope():
            keras.utils.set_random_seed(3)
            ids = keras.Input((3,), dtype="int64", name="ids")
            hidden = keras.layers.Flatten()(hk.Embedding(40, 4, name="items")(ids))
            model = keras.Model(ids, keras.layers.Dense(1)(hidden))
            model.compile(hk.SGD(0.1), "mse")
        model.fit(inputs, targets, batch_size=4, verbose=0)
        tables.append(np.asarray(model.get_layer("items").get_weights()[0]))
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-5, atol=1e-6)


@scenario
def training_gathers_rows_on_every_replica_and_starts_inside_the_scope(
    strategy: tf.distribute.Strategy, run_dir: Path
) -> None:
    with strategy.scope(), by_hand(run_dir, save_incremental_steps=1) as callback:
        model = small_model(hk.Adagrad(0.1))
        callback.resume(model)
        fit(model, 2, callback)
        assert_saved(callback)
        assert callback.tracking == {TABLE: Tracking.TOUCHED}
        attachment = callback._attachment
        assert attachment.binding is not None
        assert attachment.binding.row_wise
        table = attachment.binding.variables_by_key()[TABLE]
        watched = {str(number): copy for number, copy in enumerate(copies(table))}
        (graph,) = [g for g in attachment.binding.traced_graphs if g in attachment._checked]
        use = inspect_trace(graph, watched)
        assert use.readers == {"0": {"ResourceGather"}, "1": {"ResourceGather"}}, use
        assert use.row_writers.keys() == {"0", "1"}, use
        assert not use.other_writers, use


@scenario
def writes_from_outside_are_seen(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    with by_hand(run_dir, scrub_saves=0) as callback:
        model = mirrored_model(strategy, adagrad)
        fit(model, 2, callback)
        layer = model.get_layer("items")
        layer.set_weights([np.full((40, 4), 0.5, np.float32)])
        callback.save()
        assert_saved(callback)
        layer.embeddings._value.assign(np.full((40, 4), 0.25, np.float32))
        callback.save()
        assert_saved(callback)
        model.optimizer._accumulators[0].assign(np.full((40, 4), 2.0, np.float32))
        callback.save()
        assert_saved(callback)
        model.set_weights([weight + 1 for weight in model.get_weights()])
        callback.save_full()
        assert_saved(callback)
        assert_replicas_equal(callback)


@scenario
def a_custom_loop_is_recorded_and_exact(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_uniform([40, 4], [1, 2]), name="table")
        optimizer = hk.Adagrad(0.1)
        optimizer.build([table])

    def train(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(local(table), ids) - 1.0))
        optimizer.apply([tape.gradient(loss, table)], [table])

    @tf.function
    def step(number: tf.Tensor) -> None:
        strategy.run(train, args=(tf.stack([number, number + 3]),))

    with DeltaWriter(run_dir, {"table": table}, tables=["table"], optimizer=optimizer) as writer:
        for number in range(5):
            step(tf.constant(number))
            writer.step()
            position = writer.save()
            assert position is not None
            expected = {"table": np.asarray(copies(primary(table))[0].read_value()).tobytes()}
            assert_same(replay(run_dir, position, expected), expected)
    assert [found.tables["table"].rows_changed for found in manifests(run_dir, Kind.DELTA)] == [2] * 5
    first, second = (np.asarray(copy.read_value()) for copy in copies(primary(table)))
    assert first.tobytes() == second.tobytes()

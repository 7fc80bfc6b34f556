"""What must hold under MirroredStrategy: `python -m tests.distributed.mirrored_program [SCENARIO ...]`.

Two logical CPUs are the devices. They must be made before TensorFlow starts, so all scenarios run in one process of
their own. Prints a JSON object: the name of each scenario, and null or the traceback of what did not hold.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hotdelta.keras as hk
from exporter import export_saved_model
from hotdelta.chain.manifest import Kind, Tracking
from hotdelta.errors import ConfigurationError
from hotdelta.train.loop import DeltaWriter
from hotdelta.train.replicas import copies, local, primary, refuse_strategy
from hotdelta.train.trace_check import inspect_trace
from tests.chain_replay import replay
from tests.keras.small_models import (
    assert_same,
    assert_saved,
    batches,
    by_hand,
    fit,
    live,
    manifests,
    small_model,
)

TABLE = "items/embeddings"
Scenario = Callable[[tf.distribute.Strategy, Path], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(check: Scenario) -> Scenario:
    SCENARIOS[check.__name__] = check
    return check


def mirrored_model(
    strategy: tf.distribute.Strategy, optimizer: Callable[[], Any], **options: Any
) -> keras.Model:
    with strategy.scope():
        return small_model(optimizer(), **options)


def adagrad() -> Any:
    return hk.Adagrad(0.1)


def assert_replicas_equal(callback: hk.DeltaCheckpoint) -> None:
    """Every variable, tables and slots too, on both devices."""
    assert callback._attachment.binding is not None
    for key, variable in callback._attachment.binding.variables_by_key().items():
        first, second = (np.asarray(copy.read_value()) for copy in copies(variable))
        assert first.tobytes() == second.tobytes(), key


def raised(action: Callable[[], Any]) -> str:
    try:
        action()
    except ConfigurationError as error:
        return str(error)
    raise AssertionError("nothing was refused")


@scenario
def row_wise_optimizers_are_recorded_and_exact(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "momentum": lambda: hk.SGD(0.1, momentum=0.9),
        "adagrad": adagrad,
        "adam": lambda: hk.Adam(0.1),
        "ftrl": lambda: hk.Ftrl(0.1),
        "clipped": lambda: hk.Adagrad(0.1, clipnorm=0.5),
        "scaled": lambda: hk.LossScaleOptimizer(hk.Adagrad(0.1)),
    }
    for name, maker in makers.items():
        with by_hand(run_dir / name) as callback:
            model = mirrored_model(strategy, maker)
            for seed in range(3):
                fit(model, 1, callback, seed=seed)
                assert_saved(callback)
            assert callback.tracking == {TABLE: Tracking.TOUCHED}, name
            assert_replicas_equal(callback)
        assert all(0 < found.rows_changed <= 12 for found in manifests(run_dir / name, Kind.DELTA)), name


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
def training_gathers_rows_on_every_replica(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    with by_hand(run_dir) as callback:
        fit(mirrored_model(strategy, adagrad), 1, callback)
        attachment = callback._attachment
        assert attachment.binding is not None
        assert attachment.binding.row_wise is not None
        table = attachment.binding.variables_by_key()[TABLE]
        watched = {str(number): copy for number, copy in enumerate(copies(table))}
        (graph,) = [g for g in attachment.binding.row_wise.traced_graphs if g in attachment._checked]
        use = inspect_trace(graph, watched)
        assert use.readers == {"0": {"ResourceGather"}, "1": {"ResourceGather"}}, use
        assert use.row_writers.keys() == {"0", "1"}, use
        assert not use.other_writers, use


@scenario
def resume_writes_every_replica_and_goes_on_as_if_never_stopped(
    strategy: tf.distribute.Strategy, run_dir: Path
) -> None:
    never_stopped = mirrored_model(strategy, lambda: hk.Adam(0.1))
    with by_hand(run_dir / "never") as callback:
        fit(never_stopped, 4, callback, seed=1)
        fit(never_stopped, 4, callback, seed=2)
        expected = live(callback)
    with by_hand(run_dir / "stopped", save_incremental_steps=1) as callback:
        fit(mirrored_model(strategy, lambda: hk.Adam(0.1)), 4, callback, seed=1)
    with by_hand(run_dir / "stopped") as callback:
        model = mirrored_model(strategy, lambda: hk.Adam(0.1), seed=9)
        resumed = callback.resume(model)
        assert resumed is not None
        assert resumed.step == 4
        assert_replicas_equal(callback)
        fit(model, 4, callback, seed=2)
        assert_replicas_equal(callback)
        assert_same(live(callback), expected)


@scenario
def a_chain_goes_on_with_another_number_of_devices(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    with by_hand(run_dir) as callback:
        fit(mirrored_model(strategy, adagrad), 3, callback)
        saved = live(callback)
    with by_hand(run_dir) as callback:
        model = small_model(seed=9)
        callback.resume(model)
        assert_same(live(callback), saved)
        fit(model, 2, callback)
        assert_saved(callback)
        saved = live(callback)
    with by_hand(run_dir) as callback:
        callback.resume(mirrored_model(strategy, adagrad, seed=9))
        assert_same(live(callback), saved)
        assert_replicas_equal(callback)


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
def the_callback_may_start_inside_the_scope(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    with strategy.scope(), by_hand(run_dir, save_incremental_steps=1) as callback:
        model = small_model(hk.Adagrad(0.1))
        callback.resume(model)
        fit(model, 2, callback)
        assert_saved(callback)
        assert callback.tracking == {TABLE: Tracking.TOUCHED}


@scenario
def the_serving_graph_that_is_left_can_be_exported(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    with by_hand(run_dir / "run", serving_graph=True) as callback:
        model = mirrored_model(strategy, adagrad)
        fit(model, 3, callback)
        callback.save_full()
        expected = model.predict_on_batch(batches(1)[0])
    version = export_saved_model(run_dir / "run", run_dir / "export", save_incr_model=True)
    served = tf.saved_model.load(str(version)).signatures["serving_default"]
    (found,) = served(ids=tf.constant(batches(1)[0])).values()
    # On a batch Keras concatenates the answers of all replicas, which had the same inputs.
    np.testing.assert_array_equal(found, expected[: len(found)])


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


@scenario
def replicas_that_drift_apart_are_refused(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    def train(name: str, optimizer: Callable[..., Any], *, synchronized: bool) -> None:
        with strategy.scope():
            ids = keras.Input((3,), dtype="int64", name="ids")
            hidden = keras.layers.Flatten()(hk.Embedding(40, 4, name="items")(ids))
            hidden = keras.layers.BatchNormalization(synchronized=synchronized)(hidden)
            model = keras.Model(ids, keras.layers.Dense(1)(hidden))
            model.compile(optimizer(0.1), "mse")
        with by_hand(run_dir / name) as callback:
            fit(model, 2, callback)
            assert_saved(callback)
            assert_replicas_equal(callback)

    for optimizer in (hk.Adagrad, keras.optimizers.Adam):
        name = optimizer.__name__
        refusal = raised(lambda: train(f"{name} apart", optimizer, synchronized=False))  # noqa: B023
        assert "synchronized=True" in refusal
        train(f"{name} together", optimizer, synchronized=True)


@scenario
def an_optimizer_from_outside_the_scope_is_refused(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    optimizer = hk.Adagrad(0.1)
    model = mirrored_model(strategy, lambda: optimizer)
    assert "strategy.scope()" in raised(lambda: by_hand(run_dir).resume(model))


@scenario
def a_variable_that_differs_by_design_is_refused(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    with strategy.scope():
        counter = keras.Variable(0.0, trainable=False, synchronization="on_read", aggregation="sum")
    assert "on_write" in raised(lambda: DeltaWriter(run_dir, {"counter": counter}))


@scenario
def other_strategies_are_refused(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    central = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])
    assert "MirroredStrategy" in raised(lambda: refuse_strategy(central))


def main() -> None:
    wanted = sys.argv[1:] or list(SCENARIOS)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found: dict[str, str | None] = {}
    for name in wanted:
        with tempfile.TemporaryDirectory() as directory:
            try:
                SCENARIOS[name](strategy, Path(directory))
                found[name] = None
            except Exception:  # noqa: BLE001 - the test that asked for this scenario reports it
                found[name] = traceback.format_exc()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

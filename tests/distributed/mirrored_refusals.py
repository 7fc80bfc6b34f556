"""What cannot be saved under a strategy, and is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.train.loop import DeltaWriter
from hotdelta.train.tables.replicas import refuse_strategy
from tests.distributed.mirrored_models import (
    assert_replicas_equal,
    mirrored_model,
    raised,
    scenario,
)
from tests.keras.small_models import assert_saved, by_hand, fit


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

    refusal = raised(lambda: train("apart", hk.Adagrad, synchronized=False))
    assert "synchronized=True" in refusal
    train("together", keras.optimizers.Adam, synchronized=True)


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

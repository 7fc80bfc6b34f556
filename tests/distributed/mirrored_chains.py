"""What becomes of a chain that was written under MirroredStrategy: resumed, loaded, exported."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hotdelta.io as hio
import hotdelta.keras as hk
from exporter import export_saved_model
from hotdelta.io.model_state import state_of
from hotdelta.train.tables.replicas import copies
from tests.distributed.mirrored_models import (
    adagrad,
    assert_replicas_equal,
    mirrored_model,
    scenario,
)
from tests.io.models import bits, different
from tests.keras.small_models import assert_same, assert_saved, batches, by_hand, fit, live, small_model


@scenario
def resume_writes_every_replica_and_goes_on_as_if_never_stopped(
    strategy: tf.distribute.Strategy, run_dir: Path
) -> None:
    never_stopped = mirrored_model(strategy, lambda: hk.Adam(0.1))
    with by_hand(run_dir / "stopped", save_incremental_steps=1) as callback:
        fit(never_stopped, 4, callback, seed=1)
    with by_hand(run_dir / "never") as callback:
        fit(never_stopped, 4, callback, seed=2)
        expected = live(callback)
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
def what_is_loaded_is_loaded_into_every_replica(strategy: tf.distribute.Strategy, run_dir: Path) -> None:
    saved = mirrored_model(strategy, lambda: hk.Adam(0.1))
    fit(saved, 2)
    hio.save_persistables(saved, run_dir)
    early = mirrored_model(strategy, lambda: hk.Adam(0.1), seed=9)
    hio.load_persistables(early, run_dir)
    with strategy.scope():
        compiled = small_model(seed=8)
        late = keras.Model(compiled.inputs, compiled.outputs)
        hio.load_persistables(late, run_dir)
        late.compile(hk.Adam(0.7), "mse")
    for model in (early, late):
        assert different(bits(model), bits(saved)) == set()
    for model in (saved, early, late):
        fit(model, 2, seed=5)
    for model in (early, late):
        assert different(bits(model), bits(saved)) == set()
        for held in state_of(model).variables:
            values = {np.asarray(copy.read_value()).tobytes() for copy in copies(held.parts[0])}
            assert len(values) == 1 or not held.info.is_persistable, held.key

"""DeltaCheckpoint in fit and in loops: everything that training writes is on disk, whoever writes it and whenever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.manifest import Kind, Tracking
from hotdelta.chain.position import Position
from hotdelta.errors import ConfigurationError
from hotdelta.train import full_builder
from tests.keras.small_models import (
    ROWS,
    assert_same,
    assert_saved,
    batches,
    by_hand,
    fit,
    live,
    manifests,
    positions,
    resumed_values,
    small_model,
)


def test_fit_saves_by_steps_with_a_first_full_and_a_last_delta(tmp_path: Path) -> None:
    with by_hand(tmp_path, save_incremental_steps=2) as callback:
        model = small_model()
        fit(model, 5, callback, epochs=2)
        assert positions(tmp_path, Kind.FULL) == [Position(1, 1)]
        steps = [manifest.step for manifest in manifests(tmp_path, Kind.DELTA)]
        assert steps[-1] == 10
        assert all(after - before >= 2 for before, after in zip([0, *steps], steps[:-1], strict=False))
        assert callback.tracking == {"items/embeddings": Tracking.TOUCHED}
        assert_saved(callback)
        values = live(callback)
    assert_same(resumed_values(tmp_path), values)


def test_fit_saves_by_epochs_and_has_finished_the_full_when_it_returns(tmp_path: Path) -> None:
    with by_hand(tmp_path, save_epochs=2, save_incremental_epochs=1, keep_fulls=2) as callback:
        fit(small_model(), 2, callback, epochs=6)
        assert len(positions(tmp_path, Kind.FULL)) == 2
        assert manifests(tmp_path, Kind.FULL)[-1].step == 12
        assert_saved(callback)


@pytest.mark.parametrize("layer", [hk.Embedding, keras.layers.Embedding])
def test_fulls_written_during_fit_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: Any
) -> None:
    monkeypatch.setattr(full_builder, "CHUNK_BYTES", 32)
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ROWS, 4)(inputs))))
    optimizer = hk.Adam(0.01) if layer is hk.Embedding else keras.optimizers.Adam(0.01)
    model.compile(optimizer, "mse")
    with by_hand(tmp_path, save_steps=1, save_incremental_steps=1) as callback:
        fit(model, 200, callback)
        assert len(positions(tmp_path, Kind.FULL)) > 1
        assert_saved(callback)


@pytest.mark.parametrize("is_first", [True, False])
def test_weights_that_early_stopping_restores_are_in_the_last_commit(tmp_path: Path, is_first: bool) -> None:
    stopping = keras.callbacks.EarlyStopping(
        monitor="loss", mode="max", patience=1, restore_best_weights=True, start_from_epoch=0
    )
    with by_hand(tmp_path, save_incremental_steps=3) as callback:
        callbacks = [stopping, callback] if is_first else [callback, stopping]
        model = small_model(hk.Adagrad(0.5))
        fit(model, 2, *callbacks, epochs=20)
        assert stopping.stopped_epoch > 0
        assert_same(
            {"a": b"".join(w.tobytes() for w in model.get_weights())}, _weights(stopping.best_weights)
        )
        assert_saved(callback)


def _weights(weights: Any) -> Any:
    return {"a": b"".join(np.asarray(weight).tobytes() for weight in weights)}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_step_that_raises_ends_with_a_save(tmp_path: Path, error: type[BaseException]) -> None:
    class Failing(keras.Model):
        fails_at = 3

        def train_step(self, data: Any) -> Any:
            if int(self.optimizer.iterations) == self.fails_at:
                raise error
            return super().train_step(data)

    inputs = keras.Input((3,), dtype="int64")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(hk.Embedding(ROWS, 4)(inputs)))
    model = Failing(inputs, outputs)
    model.compile(hk.Adagrad(0.1), "mse", run_eagerly=True)
    callback = by_hand(tmp_path)
    with pytest.raises(error):
        fit(model, 6, callback)
    assert manifests(tmp_path, Kind.DELTA)[-1].step == 3
    assert_saved(callback)
    model.fails_at = -1
    fit(model, 2, callback)
    assert_saved(callback)
    callback.close()


def test_an_exception_in_the_with_form_ends_with_a_save(tmp_path: Path) -> None:
    model = small_model()

    def train() -> None:
        with by_hand(tmp_path) as callback:
            callback.resume(model)
            model.train_on_batch(*batches(1))
            raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        train()
    table = model.get_layer("items").get_weights()[0]
    assert resumed_values(tmp_path)["items/embeddings"] == table.tobytes()


def test_several_steps_per_execution_are_counted_and_recorded(tmp_path: Path) -> None:
    with by_hand(tmp_path, save_incremental_steps=4) as callback:
        fit(small_model(steps_per_execution=2), 8, callback)
        assert manifests(tmp_path, Kind.DELTA)[-1].step == 8
        assert callback._started.progress.step == 8
        assert callback.tracking == {"items/embeddings": Tracking.TOUCHED}
        assert_saved(callback)


def test_writes_from_outside_are_recorded(tmp_path: Path) -> None:
    model = small_model()
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        table = model.get_layer("items")._embeddings
        model.save_weights(tmp_path / "w.weights.h5")
        row = tf.IndexedSlices(tf.ones((1, 4)), tf.constant([3]))
        for write in (
            lambda: table.assign(table + 1.0),
            lambda: table._value.assign_add(tf.ones((ROWS, 4))),
            lambda: model.set_weights([weight + 1 for weight in model.get_weights()]),
            lambda: model.load_weights(tmp_path / "w.weights.h5"),
            lambda: table._value.scatter_update(row),
            tf.function(lambda: table._value.scatter_add(row)),
        ):
            model.train_on_batch(*batches(1))
            callback.save()
            write()
            callback.save()
            assert_saved(callback)
        assert callback.status.rows_unrecorded == 0


def test_progress_and_reader_state_are_there_before_fit(tmp_path: Path) -> None:
    reader = {"offset": 0}

    def callback_with_reader() -> hk.DeltaCheckpoint:
        callback = by_hand(tmp_path)
        callback.register_state("reader", lambda: reader["offset"], lambda value: reader.update(offset=value))
        return callback

    with callback_with_reader() as callback:
        callback.resume(model := small_model())
        callback.watermark(123.0)
        reader["offset"] = 17
        fit(model, 3, callback, epochs=2)
        with pytest.raises(ConfigurationError, match="too late"):
            callback.register_state("late", lambda: 1)
    reader["offset"] = -1
    with callback_with_reader() as callback:
        resumed = callback.resume(small_model())
    assert resumed is not None
    assert (resumed.step, resumed.epoch, resumed.step_in_epoch) == (6, 2, 0)
    assert reader["offset"] == resumed.state["reader"] == 17
    assert manifests(tmp_path, Kind.DELTA)[-1].watermark == 123.0


def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    def train(run_dir: Path, first: int, last: int) -> Any:
        model = small_model(hk.Adam(0.01))
        with by_hand(run_dir, save_incremental_steps=1) as callback:
            callback.resume(model)
            for step in range(first, last):
                model.train_on_batch(*batches(1, seed=step))
                callback.step()
            return live(callback)

    expected = train(tmp_path / "whole", 0, 6)
    train(tmp_path / "parts", 0, 3)
    assert_same(train(tmp_path / "parts", 3, 6), expected)

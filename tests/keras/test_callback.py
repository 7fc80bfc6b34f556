"""DeltaCheckpoint in fit and in loops: everything that training writes is on disk, whoever writes it and whenever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.lock import TrainerLock
from hotdelta.chain.manifest import Kind, Tracking
from hotdelta.chain.position import Position
from hotdelta.errors import ConfigurationError, DirectoryBusyError, ModelMismatchError
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
    small_model,
)


def resumed_values(run_dir: Path, optimizer: Any = None) -> Any:
    """What a trainer finds that starts now, with a model of its own."""
    with by_hand(run_dir) as callback:
        callback.resume(small_model(optimizer, seed=99))
        return live(callback)


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


def test_a_second_fit_a_new_callback_and_one_added_later_all_record(tmp_path: Path) -> None:
    model = small_model(hk.Adam(0.01))
    fit(model, 2)
    first = by_hand(tmp_path)
    fit(model, 2, first, seed=1)
    assert_saved(first)
    fit(model, 2, first, seed=2)
    assert_saved(first)
    fit(model, 2, seed=3)
    second = by_hand(tmp_path)
    fit(model, 2, second, seed=4)
    assert second.resumed is not None
    assert second.resumed.step == 8
    assert second.position is not None
    assert second.position.run == 2
    assert_saved(second)
    second.close()
    assert positions(tmp_path, Kind.FULL) == [Position(1, 1)]


@pytest.mark.parametrize("optimizer", [hk.Adagrad, hk.Adam, keras.optimizers.Adam])
def test_a_recompiled_model_goes_on_in_the_same_chain(tmp_path: Path, optimizer: Any) -> None:
    model = small_model()
    callback = by_hand(tmp_path)
    fit(model, 2, callback)
    model.compile(optimizer(0.02), "mse")
    fit(model, 1, seed=1)
    fit(model, 2, callback, seed=2)
    assert callback.position is not None
    assert callback.position.run == 1
    assert_saved(callback)
    fit(model, 2, callback, seed=3)
    assert_saved(callback)
    values = live(callback)
    callback.close()
    assert_same(resumed_values(tmp_path, optimizer(0.3)), values)
    if optimizer is not hk.Adagrad:
        with pytest.raises(ModelMismatchError, match="optimizer/"):
            resumed_values(tmp_path)


def test_a_model_recompiled_in_a_loop_is_noticed_at_the_next_step(tmp_path: Path) -> None:
    model = small_model()
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        model.train_on_batch(*batches(1))
        callback.step()
        model.compile(hk.Adam(0.01), "mse")
        model.train_on_batch(*batches(1, seed=1))
        callback.step()
        model.train_on_batch(*batches(1, seed=2))
        callback.save()
        assert_saved(callback)


def test_a_model_compiled_again_only_to_be_evaluated_keeps_its_optimizer_in_the_chain(tmp_path: Path) -> None:
    model = small_model()
    with by_hand(tmp_path) as callback:
        fit(model, 2, callback)
        values = live(callback)
        model.compile(loss="mse")
        model.evaluate(*batches(1), verbose=0)
    assert_same(resumed_values(tmp_path), values)


def test_another_model_in_the_same_chain_is_refused(tmp_path: Path) -> None:
    with by_hand(tmp_path) as callback:
        callback.resume(small_model())
        with pytest.raises(ConfigurationError, match="not the one that this chain was started with"):
            callback.resume(small_model(rows=ROWS + 1))


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


def test_a_directory_that_another_trainer_holds_is_refused(tmp_path: Path) -> None:
    with TrainerLock(tmp_path), pytest.raises(DirectoryBusyError, match="another trainer"):
        by_hand(tmp_path).resume(small_model())


def test_a_checkpoint_of_another_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    with by_hand(tmp_path) as callback:
        callback.resume(small_model(hk.Adam(0.01)))
    with pytest.raises(
        ModelMismatchError, match="optimizer/velocities/items/embeddings: the checkpoint has it"
    ):
        by_hand(tmp_path).resume(small_model(hk.SGD(0.1)))


def test_options_that_cannot_work_raise_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="every 0 seconds"):
        hk.DeltaCheckpoint(tmp_path, save_secs=0)
    with pytest.raises(ConfigurationError, match="every -1 touched_rows"):
        hk.DeltaCheckpoint(tmp_path, save_incremental_touched_rows=-1)
    with pytest.raises(ConfigurationError, match="keep 0 fulls"):
        hk.DeltaCheckpoint(tmp_path, keep_fulls=0)
    with pytest.raises(ConfigurationError, match="not attached"):
        hk.DeltaCheckpoint(tmp_path).save()


def test_models_that_cannot_be_saved_raise_at_once(tmp_path: Path) -> None:
    model = small_model()
    for options, message in (
        ({"tracking": {"nothing": "touched"}}, "'nothing', which is no table"),
        ({"tracking": {"items/embeddings": "guessed"}}, "'guessed' is unknown"),
        ({"tables": ["nothing"]}, "'nothing' is not a variable"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            by_hand(tmp_path, **options).resume(model)
    with pytest.raises(ConfigurationError, match="not compiled"):
        by_hand(tmp_path).resume(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    unbuilt = keras.Sequential([hk.Embedding(4, 2)])
    unbuilt.compile(hk.SGD(0.1), "mse")
    with pytest.raises(ConfigurationError, match="no variables yet"):
        by_hand(tmp_path).resume(unbuilt)
    compiled = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(4, 2), keras.layers.Flatten()])
    compiled.compile(hk.SGD(0.1), "mse", jit_compile=True)
    with pytest.raises(ConfigurationError, match="jit_compile=False"):
        by_hand(tmp_path).resume(compiled)
    assert not list(tmp_path.iterdir())

"""DeltaCheckpoint in fit and in loops: everything that training writes is on disk, whoever writes it and whenever."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.format.position import Position
from hotdelta.errors import ConfigurationError, UnsavedError
from hotdelta.train.save import full_builder
from tests.full_disk import small_files_only
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
        model = small_model(steps_per_execution=2)
        fit(model, 8, callback)
        assert manifests(tmp_path, Kind.DELTA)[-1].step == 8
        assert callback._started.progress.step == 8
        assert callback.tracking == {"items/embeddings": Tracking.TOUCHED}
        assert_saved(callback)
        model.compile(model.optimizer, "mse", steps_per_execution=3)
        fit(model, 8, callback)
        assert callback._started.progress.step == 16
        assert_saved(callback)


class _Places(keras.callbacks.Callback):
    """Where training was after every call, as it would be saved."""

    def __init__(self, callback: hk.DeltaCheckpoint) -> None:
        super().__init__()
        self._callback = callback
        self.found: list[tuple[int, int, int]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        progress = self._callback._started.progress
        self.found.append((progress.step, progress.epoch, progress.step_in_epoch))


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    "optimizer, is_length_known",
    [
        (lambda: hk.Adagrad(0.1), True),
        (lambda: hk.Adagrad(0.1, gradient_accumulation_steps=2), False),
        (lambda: hk.LossScaleOptimizer(hk.Adagrad(0.1)), False),
    ],
    ids=["plain", "accumulating", "loss scaling"],
)
def test_calls_that_run_out_of_data_count_as_the_batches_that_they_trained(
    tmp_path: Path, optimizer: Any, is_length_known: bool
) -> None:
    inputs, targets = batches(6)
    targets[5] = np.inf  # Loss scaling leaves the second batch out.
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(BATCH)
    if not is_length_known:
        data = data.filter(lambda *_batch: True)
    model = small_model(optimizer(), steps_per_execution=4)
    with by_hand(tmp_path) as callback:
        places = _Places(callback)
        model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=[callback, places])
        assert places.found == [(4, 0, 4), (6, 0, 6), (10, 1, 4), (12, 1, 6), (16, 2, 4), (18, 2, 6)]
        assert manifests(tmp_path)[-1].step == 18


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


def test_a_step_that_saves_nothing_is_counted_and_nothing_is_looked_at(tmp_path: Path) -> None:
    calls: list[str] = []

    def note(frame: Any, what: str, _argument: Any) -> None:
        if what in ("call", "c_call"):
            calls.append(frame.f_code.co_name)

    model = small_model()
    with by_hand(tmp_path, save_incremental_steps=1000, save_steps=1000) as callback:
        fit(model, 2, callback)
        callback.step()
        sys.setprofile(note)
        try:
            callback.step()
        finally:
            sys.setprofile(None)
        assert callback._started.progress.step == 4
    assert len(calls) < 40, calls


def test_a_trainer_says_in_a_few_lines_what_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    for noisy in ("absl", "tensorflow"):
        caplog.set_level(logging.INFO, noisy)

    def model(optimizer: Any) -> keras.Model:
        inputs = [keras.Input((3,), dtype="int64", name=name) for name in ("users", "items")]
        rows = [hk.Embedding(ROWS, 4, name=f"{each.name}_table")(each) for each in inputs]
        hidden = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
        made = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        made.compile(optimizer, "mse")
        return made

    def train(optimizer: Any) -> list[str]:
        caplog.clear()
        ids, targets = batches(2)
        with by_hand(tmp_path, serving_graph=True) as callback:
            data = {"users": ids, "items": ids}
            model(optimizer).fit(data, targets, batch_size=BATCH, verbose=0, callbacks=[callback])
        return [record.getMessage() for record in caplog.records]

    tables = '"users_table/embeddings, items_table/embeddings"'
    begun = train(hk.SGD(0.1))
    assert begun[0] == f"a new chain begins directory={tmp_path} run=1"
    assert begun[1] == f"tracking touched={tables}"
    assert begun[2].startswith("full committed position=1.1 step=0 rows=0 bytes=")
    assert begun[3].startswith("delta committed position=1.2 step=2 rows=")
    assert len(begun) == 4
    resumed = train(hk.SGD(0.1, weight_decay=0.01))
    assert resumed[0] == "resumed position=1.2 step=2 deltas=1"
    assert f"tables are compared row by row at every save tables={tables}" in resumed[2]
    assert len([line for line in resumed if "compared" in line]) == 1
    # TensorFlow looked for the values of the serving graph, which has none.
    assert "Failed to read checkpoint" not in capfd.readouterr().err
    assert not list(tmp_path.rglob("fingerprint.pb"))


def generated(steps: int, *, seed: int = 0) -> Iterator[tuple[Any, Any]]:
    inputs, targets = batches(steps, seed=seed)
    for first in range(0, len(inputs), BATCH):
        yield inputs[first : first + BATCH], targets[first : first + BATCH]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_a_generator_that_ends_is_committed_as_the_steps_it_gave(tmp_path: Path, steps_per_call: int) -> None:
    def train(model: keras.Model, epoch: int, run_dir: Path = tmp_path / "run") -> None:
        with by_hand(run_dir) as callback:
            model.fit(generated(8, seed=epoch), shuffle=False, verbose=0, callbacks=[callback])
            assert manifests(run_dir)[-1].step == callback._started.progress.step == 8 * (epoch + 1)

    first, whole, resumed = (
        small_model(hk.Adam(0.1), seed=seed, steps_per_execution=steps_per_call) for seed in (1, 1, 2)
    )
    train(first, 0)
    # Keras alone begins one more step, without data: it would be counted here, and draw random numbers.
    assert int(first.optimizer.iterations) == 8
    train(resumed, 1)
    for epoch in range(2):
        train(whole, epoch, tmp_path / "whole")
    with by_hand(tmp_path / "run") as callback:
        found = callback.resume(small_model(hk.Adam(0.1), seed=3))
        assert found is not None
        assert found.step == 16
    for mine, theirs in zip(resumed.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_a_step_that_raises_is_not_committed_as_one(tmp_path: Path) -> None:
    model = small_model()
    inputs, targets = batches(6)
    inputs[-1] = ROWS
    with by_hand(tmp_path, save_incremental_steps=2) as callback:
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.fit(inputs, targets, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[callback])
        assert int(model.optimizer.iterations) == 6
        assert manifests(tmp_path)[-1].step == 5
        assert_saved(callback)
    assert manifests(tmp_path)[-1].step == 5


def test_the_end_of_fit_on_a_full_disk_raises_and_what_it_trained_can_still_be_saved(tmp_path: Path) -> None:
    model, callback = small_model(), by_hand(tmp_path)
    callback.resume(model)
    lost = r"3 steps \(\d+ touched rows\) since position 1.1 would be lost"
    with small_files_only(), pytest.raises(UnsavedError, match=lost):
        fit(model, 3, callback)
    callback.save()
    assert_saved(callback)
    with small_files_only():
        with pytest.raises(UnsavedError, match="2 steps"):
            fit(model, 2, callback)
        with pytest.raises(UnsavedError, match="2 steps"):
            callback.close()
    assert manifests(tmp_path)[-1].step == 3

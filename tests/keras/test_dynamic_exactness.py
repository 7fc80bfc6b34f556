"""I1 with tables that have no fixed vocabulary: full + deltas equals the trainer at every saved position."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hotdelta.keras as hk
from hotdelta.chain.format import key_index
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.history.scan import Scanner
from hotdelta.train import MostKeys, SeenTimes, SeenTimesInFilter, UntouchedSteps
from tests.chain_replay import replay
from tests.keras.test_exactness import OURS, Training, exactness

pytestmark = [pytest.mark.I1, pytest.mark.optimized]


def mixed_model(**options: Any) -> keras.Model:
    """A table with keys that two inputs look up, another one, and one of the fixed kind."""
    left, right = (keras.Input((3,), dtype="int64", name=name) for name in ("left", "right"))
    shared = hk.DynamicEmbedding(4, max_rows=5_000, name="shared", **options)
    alone = hk.DynamicEmbedding(2, max_rows=5_000, combiner="sum", initializer="normal", name="alone")
    fixed = hk.Embedding(60, 3, name="fixed")
    parts = [shared(left * 2**40), shared(right), fixed(right)]
    flat = [keras.layers.Flatten()(part) for part in parts]
    hidden = keras.layers.Dense(4)(keras.layers.Concatenate()([*flat, alone(left)]))
    return keras.Model([left, right], keras.layers.Dense(1)(hidden))


# Those with the slots of another one, on tables whose rows come with their keys: tests of fixed tables have them all.
ALIKE = ("our nesterov", "our AdamW", "our Adagrad, clipped")
# At most, of which each brings keys that are never removed.
STEPS = 10_000


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in ALIKE else []) for name in OURS]
)
def test_tables_with_keys_are_exact(name: str) -> None:
    model = mixed_model()
    model.compile(OURS[name](), "mse")
    exactness(model, Tracking.TOUCHED, actions=("train", "save", "full"))


def test_tables_whose_keys_go_are_exact() -> None:
    """With what they know of each row, which is saved like a slot."""
    model = mixed_model(eviction=[UntouchedSteps(2), MostKeys(15, least="count")])
    model.compile(hk.Adam(0.01), "mse")
    exactness(model, Tracking.TOUCHED, actions=("train", "save", "full"))
    assert len(model.get_layer("shared").items()[0]) < 40


@pytest.mark.parametrize("admission", [SeenTimes(2), SeenTimesInFilter(2, keys=500)])
def test_tables_whose_keys_wait_are_exact(admission: Any) -> None:
    """With what is counted of each key, which is saved like a table of its own."""
    model = mixed_model(admission=admission, eviction=UntouchedSteps(3))
    model.compile(hk.Adam(0.01), "mse")
    exactness(model, Tracking.TOUCHED, actions=("train", "save", "full"))


def test_a_layer_of_the_same_configuration_has_the_same_policies() -> None:
    layer = hk.DynamicEmbedding(
        2,
        max_rows=10,
        admission=SeenTimesInFilter(3, keys=50),
        eviction=[UntouchedSteps(2), MostKeys(15, least="count")],
    )
    again = hk.DynamicEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert layer.get_config()["admission"] == {
        "policy": "SeenTimesInFilter",
        "times": 3,
        "keys": 50,
        "error": 0.01,
    }
    assert layer.get_config()["eviction"] == [
        {"policy": "UntouchedSteps", "steps": 2},
        {"policy": "MostKeys", "keys": 15, "least": "count"},
    ]


def test_eager_training_is_exact() -> None:
    model = mixed_model()
    model.compile(hk.Adam(0.01), "mse", run_eagerly=True)
    exactness(model, Tracking.TOUCHED, examples=1, actions=("train", "save", "full"))


def test_a_delta_has_the_rows_that_were_touched(tmp_path: Path) -> None:
    """Also after the table has grown beyond the flags that it began with, and after a resume."""
    keys = keras.Input((4,), dtype="int64", name="keys")
    users = hk.DynamicEmbedding(2, max_rows=100_000, name="users")
    model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(users(keys))))
    model.compile(hk.Adagrad(0.1), "mse")
    training = Training(model, tmp_path)
    batch = np.arange(40_000).reshape(-1, 4)

    def train(some: Any) -> None:
        model.train_on_batch(some, np.zeros((len(some), 1), np.float32))
        training.callback.step()

    train(batch)
    training.callback.save_full()
    counts = []
    for some in (batch[:5], batch[9_000:9_002], np.array([[50_001, 50_002, 1, 2]])):
        train(some)
        training.callback.save()
        counts.append(_rows_of_newest(tmp_path))
    assert counts == [20, 8, 4]
    training.callback.close()
    again = keras.models.clone_model(model)
    again.compile(hk.Adagrad(0.1), "mse")
    resumed = Training(again, tmp_path)
    again.train_on_batch(batch[:1], np.zeros((1, 1), np.float32))
    resumed.callback.step()
    resumed.callback.save()
    assert _rows_of_newest(tmp_path) == 4
    resumed.callback.close()


def test_rows_that_were_there_before_anything_is_saved_have_slots(tmp_path: Path) -> None:
    """Their slots get first values before they are hashed and written, so that nothing seems to change by itself."""
    keys = keras.Input((4,), dtype="int64", name="keys")
    users = hk.DynamicEmbedding(2, max_rows=10_000, name="users")
    model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(users(keys))))
    model.compile(hk.Adagrad(0.1), "mse")
    users(np.arange(1_000), training=True)
    with hk.DeltaCheckpoint(tmp_path, None, None, scrub_saves=1) as callback:
        callback.resume(model)
        model.train_on_batch(np.arange(400).reshape(-1, 4), np.zeros((100, 1), np.float32))
        callback.step()
        callback.save()
        assert callback.status.rows_unrecorded == 0
    assert _rows_of_newest(tmp_path) == 400


def test_fewer_keys_that_are_assigned_are_one_more_delta(tmp_path: Path) -> None:
    """Which a server takes: nothing that was in use goes out of use."""
    keys = keras.Input((4,), dtype="int64", name="keys")
    users = hk.DynamicEmbedding(2, max_rows=10_000, name="users")
    model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(users(keys))))
    model.compile(hk.Adagrad(0.1), "mse")
    model.train_on_batch(np.arange(4_000).reshape(-1, 4), np.zeros((1_000, 1), np.float32))
    training = Training(model, tmp_path)
    training.begin()
    users.assign([5, 6], np.ones((2, 2), np.float32))
    training.callback.save()
    training.remember()
    model.train_on_batch(np.array([[5, 6, 7, 8]]), np.zeros((1, 1), np.float32))
    training.callback.step()
    training.callback.save()
    training.remember()
    training.check()
    in_use = [found.tables["users/rows"].rows_in_use for found in Scanner(tmp_path).scan().manifests]
    assert in_use[-3:] == [4_001, 4_001, 4_003]
    assert users.items()[0].tolist() == [5, 6, 7, 8]
    training.callback.close()


def _rows_of_newest(run_dir: Path) -> int:
    manifests = [found for found in Scanner(run_dir).scan().manifests if found.kind is Kind.DELTA]
    return max(manifests, key=lambda found: found.position).tables["users/rows"].rows_changed


def test_a_resumed_trainer_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """One trainer without a stop, and one that is made anew after every save: equal rows, slots and first rows."""

    def batch(number: int) -> tuple[Any, Any]:
        random = np.random.default_rng(number)
        return random.integers(0, 300, (8, 4)) * 2**33, random.random((8, 1), np.float32)

    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        keys = keras.Input((4,), dtype="int64", name="keys")
        users = hk.DynamicEmbedding(3, max_rows=1_000, name="users")
        model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(users(keys))))
        model.compile(hk.Adam(0.01), "mse")
        return model

    whole = made()
    for number in range(12):
        whole.train_on_batch(*batch(number))
    part = made()
    for first in range(0, 12, 3):
        part = made()
        training = Training(part, tmp_path)
        for number in range(first, first + 3):
            part.train_on_batch(*batch(number))
            training.callback.step()
        training.callback.save() if first % 2 else training.callback.save_full()
        training.callback.close()
    for one, other in zip(whole.get_layer("users").items(), part.get_layer("users").items(), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(whole.layers[-1].get_weights()[0], part.layers[-1].get_weights()[0])


def test_cuts_in_pauses_hold_whole_steps_and_their_keys(tmp_path: Path) -> None:
    """Each step brings four keys. Whatever moment a cut was taken at, it has the keys of the steps that it counts.

    How many steps are made in the time of a commit is a matter of the disk.
    """

    class StopAfterCommits(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch >= 149 and len(Scanner(tmp_path).scan().manifests) > 20

    def batches() -> Iterator[tuple[Any, Any]]:
        for number in range(STEPS):
            time.sleep(0.004 * (number % 3))
            yield np.arange(4 * number, 4 * number + 4).reshape(1, 4) * 2**40, np.zeros((1, 1), np.float32)

    keys = keras.Input((4,), dtype="int64", name="keys")
    users = hk.DynamicEmbedding(2, max_rows=4 * STEPS, name="users")
    model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(users(keys))))
    model.compile(hk.Adam(0.01), "mse")
    callback = hk.DeltaCheckpoint(
        tmp_path, save_secs=0.3, save_incremental_secs=0.001, serving_graph=False, keep_fulls=1000
    )
    stop = StopAfterCommits()
    model.fit(batches(), steps_per_epoch=STEPS, verbose=0, shuffle=False, callbacks=[callback, stop])
    callback.close()
    listing = Scanner(tmp_path).scan().manifests
    assert len(listing) > 20
    for manifest in listing:
        names = ("users/index", "users/counts", "users/rows", "optimizer/momentums/users/rows")
        values = replay(tmp_path, manifest.position, names)
        counts = key_index.Counts.of(np.frombuffer(values["users/counts"], np.int64))
        assert counts.rows == 4 * manifest.step + 1
        index = np.frombuffer(values["users/index"], np.int64).reshape(-1, key_index.BUCKET_COLUMNS)
        assert key_index.why_malformed(np.arange(len(index)), index, counts) == ""
        assert len(key_index.items_of(index)[0]) == 4 * manifest.step
        assert len(values["users/rows"]) == len(values["optimizer/momentums/users/rows"]) == counts.rows * 8

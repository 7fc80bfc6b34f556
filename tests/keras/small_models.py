"""Small compiled models, the data to train them, and what a test compares: shared by the tests of the callback."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from tests.chain_replay import Values, replay, values_of

ROWS = 40
BATCH = 4


def small_model(optimizer: Any = None, *, rows: int = ROWS, seed: int = 1, **options: Any) -> keras.Model:
    """One table and one dense layer, with Dropout for a seed that moves at every step."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((3,), dtype="int64", name="ids")
    hidden = keras.layers.Flatten()(hk.Embedding(rows, 4, name="items")(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dropout(0.1)(hidden)))
    model.compile(optimizer or hk.Adagrad(0.1), "mse", **options)
    return model


def batches(count: int, *, seed: int = 0, rows: int = ROWS) -> tuple[Any, Any]:
    """Inputs and targets for `count` steps of BATCH examples."""
    random = np.random.default_rng(seed)
    return random.integers(0, rows, (count * BATCH, 3)), random.random((count * BATCH, 1), np.float32)


def fit(model: keras.Model, steps: int, *callbacks: Any, seed: int = 0, **options: Any) -> None:
    model.fit(
        *batches(steps, seed=seed),
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    )


def by_hand(run_dir: Path, **options: Any) -> hk.DeltaCheckpoint:
    """A callback that saves only when it is told to, or as `options` say."""
    usual = {"save_secs": None, "save_incremental_secs": None, "serving_graph": False, "keep_fulls": 100}
    return hk.DeltaCheckpoint(run_dir, **{**usual, **options})


def resumed_values(run_dir: Path, optimizer: Any = None) -> Values:
    """What a trainer finds that starts now, with a model of its own."""
    with by_hand(run_dir) as callback:
        callback.resume(small_model(optimizer, seed=99))
        return live(callback)


def live(callback: hk.DeltaCheckpoint) -> Values:
    assert callback._attachment.binding is not None
    return values_of(callback._attachment.binding.variables_by_key())


def manifests(run_dir: Path, kind: Kind | None = None) -> list[Manifest]:
    return [found for found in Scanner(run_dir).scan().manifests if kind in (None, found.kind)]


def positions(run_dir: Path, kind: Kind) -> list[Position]:
    return [manifest.position for manifest in manifests(run_dir, kind)]


def assert_same(found: Values, expected: Values) -> None:
    assert found.keys() == expected.keys()
    assert [key for key in expected if found[key] != expected[key]] == []


def assert_saved(callback: hk.DeltaCheckpoint) -> None:
    """The newest commit is the model as it is now, from the nearest full and through the links of its chain."""
    assert callback.position is not None
    expected = live(callback)
    assert_same(replay(callback.checkpoint_dir, callback.position, expected), expected)
    assert_links_are_exact(callback.checkpoint_dir, expected)


def assert_links_are_exact(run_dir: Path, keys: Any) -> None:
    """Every full equals what the links make of the full before it."""
    deltas = {manifest.position: manifest for manifest in manifests(run_dir, Kind.DELTA)}
    fulls = positions(run_dir, Kind.FULL)
    for before, full in pairwise(fulls):
        if full in deltas:
            assert_same(replay(run_dir, full, keys, full=before), replay(run_dir, full, keys))

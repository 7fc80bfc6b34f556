"""The callback with the address of a store: another machine goes on bit for bit."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

import hotdelta.keras as hk
from hotdelta.chain import Kind
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.stores.opening import open_store

ROWS = 50


def a_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    ids = keras.Input((3,), dtype="int64", name="ids")
    rows = hk.Embedding(ROWS, 4, name="table")(ids)
    score = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    model = keras.Model(ids, score)
    model.compile(hk.Adam(0.01), "mse")
    return model


def fit(model: keras.Model, callback: hk.DeltaCheckpoint, *, epochs: int, begin: int = 0) -> None:
    random = np.random.default_rng(begin)
    data = random.integers(0, ROWS, (32, 3)), random.random((32, 1), np.float32)
    model.fit(*data, batch_size=8, epochs=epochs, initial_epoch=begin, callbacks=[callback], verbose=0)


def bits(model: keras.Model) -> list[bytes]:
    return [np.asarray(item).tobytes() for item in (*model.variables, *model.optimizer.variables)]


def test_a_model_goes_on_on_another_machine(s3_address: str, tmp_path: Path) -> None:
    first = a_model(1)
    with hk.DeltaCheckpoint(
        s3_address, None, None, save_incremental_steps=3, spool_dir=tmp_path / "a"
    ) as callback:
        fit(first, callback, epochs=2)
        # The end of fit has waited until all was there.
        log = CommitLog(open_store(s3_address))
        published = list(log.positions_after(Kind.DELTA, None))
        assert published[-1] == callback.position
        figures = callback.status.publishing
        assert figures is not None
        assert figures.unpublished.deltas == 0
    second = a_model(2)
    with hk.DeltaCheckpoint(
        s3_address, None, None, save_incremental_steps=3, spool_dir=tmp_path / "b"
    ) as callback:
        resumed = callback.resume(second)
        assert resumed is not None
        assert (resumed.position, resumed.epoch) == (published[-1], 2)
        assert bits(second) == bits(first)
        fit(second, callback, epochs=3, begin=2)
        newest = callback.position
    assert newest is not None
    assert newest.run == 2
    assert list(log.positions_after(Kind.DELTA, None))[-1] == newest

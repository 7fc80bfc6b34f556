"""What a server says of itself is true in the corners, too: late fulls, fulls-only exports, refused orders."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import Kind, Node, Position
from hotdelta.errors import ApplyError, RequestError
from hotdelta.train.loop import DeltaWriter
from loader import State
from loader.model.gate import Gate
from loader.model.live_model import LiveModel
from tests.loader.step_model import (
    BY_HAND,
    ROWS,
    SIGNATURE,
    KeyedStepModel,
    Trainer,
    answer,
    export,
    find_commit,
    serving,
    serving_file,
    wait_for_position,
    wait_for_status,
)
from tests.waiting import LIMIT_SECONDS

StartTrainer = Callable[[], Trainer]
FULL, READY = Position(1, 1), Position(1, 2)


def test_deltas_are_counted_from_a_full_that_comes_after_its_closing_delta(
    root: Path, train: StartTrainer
) -> None:
    """As every full does: it is written in the background, while deltas go on."""
    with serving(root) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        full = trainer.train_full([1])
        for deltas in (1, 2):
            wait_for_position(loader, trainer.train([2]))
            status = loader.status()
            assert (status.base_full, status.deltas_since_full) == (full, deltas)


def test_a_pinned_server_says_so_also_when_its_export_takes_fulls_only(
    root: Path, train: StartTrainer
) -> None:
    shutil.rmtree(root / "export")
    export(root / "run", root / "export", save_incr_model=False)
    with serving(root) as loader:
        wait_for_position(loader, READY)
        loader.pin()
        train().train()
        status = wait_for_status(loader, lambda status: status.commits_behind == 1, "a delta is seen")
        assert (status.state, status.pinned) == (State.PINNED, READY)


def test_what_was_rolled_back_is_not_rolled_back_to(root: Path, train: StartTrainer) -> None:
    """Also not when it could be undone to: the way back led through a full, and that can be undone."""
    trainer = train()
    bad = trainer.train([1])
    with serving(root) as loader:
        wait_for_position(loader, bad)
        loader.rollback(READY)
        later = trainer.train_full([2])
        assert loader.pin(later).position == later
        with pytest.raises(RequestError, match=f"{bad} was rolled back. resume first"):
            loader.rollback(bad)
        assert answer(loader)[1].position == later


def test_an_order_that_fails_on_the_way_says_why(root: Path) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        serving_file(root / "run", find_commit(root / "run", FULL, Kind.FULL)).unlink()
        with pytest.raises(ApplyError, match=r"could not be reached: .* cannot be read: No such file"):
            loader.rollback(FULL)
        assert answer(loader)[1].position == READY


class TearingModel(LiveModel):
    """Once it is told to tear, its next apply fails in the middle: it does not hold the state before any more."""

    is_tearing = False

    def apply(self) -> None:
        if self.is_tearing:
            raise ApplyError("out of memory")
        super().apply()

    def holds(self, node: Node) -> bool:
        return not self.is_tearing and super().holds(node)


class TearingLoads:
    """Loads a model that can tear; the next one when `may_load` is set."""

    def __init__(self) -> None:
        self.may_load = threading.Event()
        self.first: TearingModel | None = None

    def __call__(self, path: Path, *, predict_threads: int) -> LiveModel:
        if self.first is not None:
            assert self.may_load.wait(LIMIT_SECONDS)
            return LiveModel.load(path, predict_threads=predict_threads)
        found = TearingModel.load(path, predict_threads=predict_threads)
        assert isinstance(found, TearingModel)
        self.first = found
        return found


def test_updates_that_were_counted_stay_counted_while_nothing_is_served(
    root: Path, train: StartTrainer
) -> None:
    loads = TearingLoads()
    with serving(root, load_model=loads) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        trainer.train([1])
        wait_for_status(loader, lambda status: status.updates == 1, "an update")
        assert loads.first is not None
        loads.first.is_tearing = True
        newest = trainer.train([2])
        try:
            status = wait_for_status(loader, lambda status: not status.is_ready, "nothing is served")
            assert status.updates == 1
        finally:
            loads.may_load.set()
        wait_for_status(loader, lambda status: status.is_ready, "it serves again")
        # What could not be applied is tried again when its files change, and otherwise after ten seconds.
        os.utime(serving_file(root / "run", find_commit(root / "run", newest)))
        wait_for_position(loader, newest)
        wait_for_position(loader, trainer.train([3]))
        # What tore the model is caught up with before it serves again, or retried and counted after that.
        wait_for_status(loader, lambda status: status.updates >= 2, "one more")


class UsersOnly(tf.Module):
    """One of the two tables of a StepModel."""

    def __init__(self) -> None:
        super().__init__()
        self.users = tf.Variable(tf.zeros([ROWS, 4]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def predict(self, ids: Any) -> dict[str, Any]:
        return {"users": tf.gather(self.users, ids)}


def test_rows_of_tables_that_the_export_does_not_hold_are_not_counted(
    root: Path, train: StartTrainer
) -> None:
    part = UsersOnly()
    with DeltaWriter(
        root / "apart",
        part,
        tables=["users"],
        tracking={"users": "touched"},
        signatures={SIGNATURE: part.predict},
        **BY_HAND,
    ) as writer:
        writer.touch("users", np.array([0]))
        writer.step()
        writer.save()
    shutil.rmtree(root / "export")
    export(root / "apart", root / "export")
    trainer = train()
    caught_up = trainer.train()
    with serving(root) as loader:
        wait_for_position(loader, caught_up)
        wait_for_position(loader, trainer.train([1, 5, 9]))
        status = wait_for_status(loader, lambda status: status.updates == 1, "an update")
        assert status.last_lag is not None
        assert status.last_lag.rows == 3


def test_a_status_waits_for_no_update(tmp_path: Path) -> None:
    """An event loop asks for it: while an update is at the gate it has the counts of keys that were seen last."""
    trainer = Trainer(tmp_path / "run", model=KeyedStepModel())
    trainer.train()
    export(tmp_path / "run", tmp_path / "export")
    gate = Gate()
    with serving(tmp_path, gate=gate) as loader:
        wait_for_position(loader, Position(1, 2))
        before = {table.key: table.rows for table in loader.status().tables}
        with gate.exclusive(), ThreadPoolExecutor(1) as asking:
            told = asking.submit(loader.status).result(LIMIT_SECONDS)
        assert {table.key: table.rows for table in told.tables} == before
        assert before["keyed/rows"] == trainer.model.keyed.counts.numpy()[0] > ROWS
    trainer.close()

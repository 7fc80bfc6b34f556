"""Writes that training did not make: those through the variable are recorded, the others the scrub finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.bundle.row_memory import hash_rows
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.train import DeltaWriter
from hotdelta.train.save import full_builder
from tests.train.conftest import StartTraining
from tests.train.small_training import BY_HAND, ROWS, SlowDisk, SmallTraining

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

ROW = tf.fill((1, 3), 7.0)
SCRUBBED = dataclasses.replace(BY_HAND, scrub_saves=4)
Write = Callable[[tf.Variable], object]
WRITES: dict[str, Write] = {
    "assign": lambda variable: variable.assign(variable + 1.0),
    "assign_add": lambda variable: variable.assign_add(tf.ones_like(variable)),
    "scatter_update": lambda variable: variable.scatter_update(tf.IndexedSlices(ROW, tf.constant([5]))),
    "scatter_nd_update": lambda variable: variable.scatter_nd_update([[6]], ROW),
    "scatter_nd_max": lambda variable: variable.scatter_nd_max([[6]], ROW),
    "slice_assign": lambda variable: variable[6:7].assign(ROW),
    "batch_scatter_update": lambda variable: variable.batch_scatter_update(tf.IndexedSlices(ROW, [5])),
}


def raw_write(variable: tf.Variable, row: int, value: float = 7.0) -> None:
    updates = tf.fill((1, 3), value)
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=[row], updates=updates)


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("which", ["table", "slot"])
@pytest.mark.parametrize("is_traced", [False, True])
def test_a_write_through_the_variable_is_in_the_next_delta(
    start_training: StartTraining, how: str, which: str, is_traced: bool
) -> None:
    training = start_training()
    training.train()
    training.save()
    write = WRITES[how]
    (tf.function(write) if is_traced else write)(getattr(training, which))
    training.save()
    training.check()
    assert training.trainer.status.rows_unrecorded == 0


ROWS_WRITTEN: dict[str, tuple[Write, int]] = {
    "scatter_add": (lambda variable: variable.scatter_add(tf.IndexedSlices(ROW, [5])), 1),
    "scatter_sub": (lambda variable: variable.scatter_sub(sparse_delta=tf.IndexedSlices(ROW, [5])), 1),
    "batch_scatter_update": (
        lambda variable: variable.batch_scatter_update(tf.IndexedSlices(tf.fill((2, 1), 7.0), [[0], [1]])),
        ROWS,
    ),
    "assign": (
        lambda variable: variable.assign(tf.IndexedSlices(ROW, tf.constant([5]), tf.constant([ROWS, 3]))),
        ROWS,
    ),
}


@pytest.mark.parametrize("how", ROWS_WRITTEN)
@pytest.mark.parametrize("is_traced", [False, True])
def test_a_write_that_names_its_rows_touches_no_others(
    start_training: StartTraining, how: str, is_traced: bool
) -> None:
    training = start_training()
    write, rows = ROWS_WRITTEN[how]
    (tf.function(write) if is_traced else write)(training.table)
    assert training.trainer.trackers.touched_rows() == rows
    training.save()
    training.check()


def test_rows_that_the_user_tells_are_all_that_a_row_wise_step_touches(tmp_path: Path) -> None:
    table = tf.Variable(tf.ones([ROWS, 3]))
    optimizer = hk.SGD(0.1)
    optimizer.build([table])
    with DeltaWriter(
        tmp_path,
        {"table": table},
        tables="table",
        tracking={"table": "touched"},
        save_secs=None,
        save_incremental_secs=None,
    ) as writer:
        optimizer.apply([tf.IndexedSlices(tf.ones([2, 3]), tf.constant([3, 5]), tf.constant([ROWS, 3]))])
        writer.touch("table", [3, 5])
        writer.save()
        assert Scanner(tmp_path).scan().manifests[-1].tables["table"].rows_changed == 2


def test_after_the_end_variables_are_as_they_were(start_training: StartTraining) -> None:
    training = start_training()
    training.close()
    assert "assign" not in vars(training.table)


def saves_until_found(training: SmallTraining) -> int:
    for saves in range(1, SCRUBBED.scrub_saves + 1):
        training.write([20])
        training.trainer.save()
        if training.trainer.status.rows_unrecorded:
            training.remember()
            return saves
    raise AssertionError("the scrub did not find the row")


@pytest.mark.parametrize("row", [0, 12, 13, 37, ROWS - 1])
@pytest.mark.parametrize("which", ["table", "slot"])
def test_a_raw_write_is_found_by_the_scrub_and_goes_into_the_delta(
    start_training: StartTraining, which: str, row: int, caplog: pytest.LogCaptureFixture
) -> None:
    training = start_training(options=SCRUBBED)
    raw_write(getattr(training, which), row)
    training.trainer.save()
    assert training.trainer.position == Position(1, 1), (
        "nothing that is known changed, so nothing was written"
    )
    saves_until_found(training)
    assert training.trainer.status.rows_unrecorded == 1
    assert "rows changed that nothing recorded" in caplog.text
    delta = training.manifests(Kind.DELTA)[-1]
    assert delta.tables["table"].rows_changed == 2
    training.check()


def test_the_scrub_is_silent_when_everything_is_recorded(start_training: StartTraining) -> None:
    training = start_training(options=SCRUBBED)
    for _ in range(2 * SCRUBBED.scrub_saves):
        training.train(steps=2)
        training.save()
    training.save_full()
    training.check()
    assert training.trainer.status.rows_unrecorded == 0


def test_a_compared_table_sees_raw_writes_by_itself(start_training: StartTraining) -> None:
    training = start_training(mode=Tracking.CHANGED)
    raw_write(training.table, 3)
    training.save()
    training.check()


def test_what_the_scrub_finds_is_in_the_full_that_is_being_made(
    start_training: StartTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_builder, "CHUNK_BYTES", 12)
    disk = SlowDisk()
    training = start_training(options=dataclasses.replace(SCRUBBED, scrub_saves=1), disk=disk)
    disk.hold()
    training.trainer.start_full()
    disk.allow(20)
    disk.wait_until_used()
    training.write([1])
    raw_write(training.table, 2)
    training.save()
    assert training.trainer.status.rows_unrecorded == 1
    disk.open()
    training.trainer.finish()
    training.remember()
    assert len(training.manifests(Kind.FULL)) == 2
    training.check()


def test_hashes_tell_every_bit_of_a_row_apart() -> None:
    rows = np.zeros((97, 3), np.float32)
    rows.view(np.uint32).reshape(-1, 3)[np.arange(96) + 1, np.arange(96) // 32] = 1 << (np.arange(96) % 32)
    assert len(set(hash_rows(rows).tolist())) == 97

"""Trainings that follow one another on servers that stay, some with deltas and some without: no delta lacks a row."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as stock

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind
from hotdelta.compat.v1.recording_roll import RecordingRoll
from hotdelta.errors import ConfigurationError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.local_cluster import LocalCluster, fresh_cluster
from tests.compat.graph_mode.small_graphs import (
    ROWS,
    Build,
    Model,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)

EVERY_STEP: dict[str, Any] = {"save_incremental_checkpoint_steps": 1}
NO_DELTAS: dict[str, Any] = {"save_incremental_checkpoint_steps": None, "save_checkpoint_steps": None}
NOT_RECORDED = "this task does not record"


@contextmanager
def task(
    cluster: LocalCluster, directory: Path, *, number: int = 0, **options: Any
) -> Iterator[tuple[Any, Model]]:
    """A Session of worker `number`; worker 0 is the chief. It is killed at the end, unless it was closed."""
    with new_graph():
        with cluster.device():
            model = build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
        session = monitored(directory, master=cluster.targets[number], is_chief=number == 0, **options)
        yield session, model
        if session._tf_sess() is not None:
            session._tf_sess().close()


def rows_changed(directory: Path) -> list[int]:
    return [delta.tables["table"].rows_changed for delta in manifests(directory, Kind.DELTA)]


def test_after_a_chief_without_deltas_the_next_one_writes_all_rows_once(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    with task(cluster, tmp_path, **EVERY_STEP) as (session, model):
        train(session, model, [[1], [2]])
    with task(cluster, tmp_path, **NO_DELTAS) as (session, model):
        train(session, model, [[3], [4]])
        with task(cluster, tmp_path, number=1, **NO_DELTAS) as (worker, other):
            train(worker, other, [[5]])
    with task(cluster, tmp_path, **EVERY_STEP) as (session, model):
        with task(cluster, tmp_path, number=1, **EVERY_STEP) as (worker, other):
            worker.run(other.train, {other.ids: [6]})
        for ids in ([7], [8], [9]):
            train(session, model, [ids])
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
    assert rows_changed(tmp_path) == [1, 1, ROWS, 1, 1]


def test_a_worker_without_recorders_that_outlives_its_chief_ends_and_what_it_trained_is_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = fresh_cluster()
    with (
        task(cluster, tmp_path, **NO_DELTAS) as (first, model),
        task(cluster, tmp_path, number=1, **NO_DELTAS) as (worker, other),
        task(cluster, tmp_path, **EVERY_STEP) as (session, model),
        caplog.at_level(logging.WARNING, "hotdelta"),
    ):
        first._tf_sess().close()
        train(session, model, [[2]])
        assert rows_changed(tmp_path) == [ROWS]
        assert "tasks=/job:worker/task:1" in caplog.text
        with pytest.raises(ConfigurationError, match=NOT_RECORDED):
            worker.run(other.train, {other.ids: [28, 29]})
        for ids in ([3], [4]):
            train(session, model, [ids])
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
        assert rows_changed(tmp_path) == [ROWS, ROWS, 1]
        with (
            pytest.raises(ConfigurationError, match=NOT_RECORDED),
            task(cluster, tmp_path, number=1, **NO_DELTAS),
        ):
            pass
        with task(cluster, tmp_path, number=1, **EVERY_STEP) as (recording, again):
            recording.run(again.train, {again.ids: [27]})
        train(session, model, [[5]])
        assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
    assert rows_changed(tmp_path) == [ROWS, ROWS, 1, 2]


def test_tasks_that_end_leave_nothing_behind_for_the_next_training(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    with task(cluster, tmp_path, **EVERY_STEP) as (session, model), session:
        train(session, model, [[1]])
    for number in (1, 0):
        with task(cluster, tmp_path, number=number, **NO_DELTAS) as (session, model), session:
            train(session, model, [[2]])
    with task(cluster, tmp_path, **EVERY_STEP) as (session, model):
        train(session, model, [[3], [4]])
    assert rows_changed(tmp_path)[-2:] == [1, 1]


def test_the_list_of_tasks_is_on_a_server_also_when_the_first_variable_is_not() -> None:
    with new_graph():
        tf.get_variable("local", [1])
        with tf.device("/job:ps/task:1/device:GPU:0"):
            tf.get_variable("remote", [1])
        assert RecordingRoll().is_chief_recording.device == "/job:ps/task:1/device:CPU:0"


@pytest.mark.parametrize("batches", [[], [[3], [4], [5]]], ids=["at once", "after steps"])
def test_what_stock_tensorflow_saved_over_a_chain_is_gone_on_from(
    tmp_path: Path, batches: list[list[int]]
) -> None:
    def build() -> Model:
        return build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))

    with new_graph():
        model, session = build(), monitored(tmp_path, **EVERY_STEP)
        train(session, model, [[1], [2]])
        session._tf_sess().close()
    (overwritten,) = manifests(tmp_path, Kind.FULL)
    with new_graph():
        model = build()
        with stock.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, save_summaries_steps=None
        ) as session:
            train(session, model, batches)
            expected = live_state(session._tf_sess())
    assert (tmp_path / f"{overwritten.prefix}.data-00000-of-00001").exists()
    with new_graph():
        model, session = build(), monitored(tmp_path, **EVERY_STEP)
        assert_same_bits(live_state(session._tf_sess()), expected)
        assert_same_bits(newest_state(tmp_path), expected)
        assert manifests(tmp_path)[-1].position.run == 2
        train(session, model, [[6], [7]])
        expected = live_state(session._tf_sess())
        session._tf_sess().close()
    with new_graph():
        build()
        with monitored(tmp_path) as session:
            assert_same_bits(live_state(session._tf_sess()), expected)


def save_by_hand(saver: Any, session: Any, directory: Path) -> None:
    saver.save(session._tf_sess(), str(directory / "best"))
    # What is committed next has a later time, also where the clock of the file system is coarse.
    time.sleep(0.02)


@pytest.mark.parametrize("is_last", [False, True], ids=["before a delta", "after all deltas"])
def test_a_checkpoint_saved_by_hand_is_gone_on_from_only_when_nothing_was_committed_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_last: bool
) -> None:
    def build() -> Model:
        return build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))

    with new_graph():
        model, best = build(), stock.compat.v1.train.Saver()
        session = monitored(tmp_path, **EVERY_STEP)
        train(session, model, [[1], [2]])
        save_by_hand(best, session, tmp_path)
        if not is_last:
            train(session, model, [[3]])
        expected = live_state(session._tf_sess())
        session._tf_sess().close()
    assert stock.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "best")
    with new_graph():
        build()
        with caplog.at_level(logging.WARNING, "hotdelta"), monitored(tmp_path, **EVERY_STEP) as session:
            assert_same_bits(live_state(session._tf_sess()), expected)
    assert ("a checkpoint of no chain" in caplog.text) == is_last


class LosesSession(tf.train.SessionRunHook):
    """As if a parameter server had been killed, once."""

    is_lost = False

    def before_run(self, run_context: Any) -> None:
        if self.is_lost:
            self.is_lost = False
            raise tf.errors.AbortedError(None, None, "lost")


def test_a_session_that_was_lost_goes_on_from_the_newest_delta_and_not_from_a_checkpoint_saved_by_hand(
    tmp_path: Path,
) -> None:
    loses_session = LosesSession()
    with new_graph():
        model = build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
        best = stock.compat.v1.train.Saver()
        with monitored(tmp_path, hooks=[loses_session], **EVERY_STEP) as session:
            save_by_hand(best, session, tmp_path)
            train(session, model, [[1], [2]])
            loses_session.is_lost = True
            assert session.run(model.step) == 2


def test_a_chain_is_not_trained_on_without_an_interval_for_deltas(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            train(session, model, [[1], [2]])
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        with pytest.raises(ConfigurationError, match="holds a chain"):
            monitored(tmp_path, save_incremental_checkpoint_steps=None)
        with pytest.raises(ConfigurationError, match="holds a chain"):
            tf.train.SingularMonitoredSession([tf.train.CheckpointSaverHook(str(tmp_path), save_secs=60)])
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

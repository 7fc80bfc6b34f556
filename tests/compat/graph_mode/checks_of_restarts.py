"""Trainings that follow one another on servers that stay, some with deltas and some without: no delta lacks a row."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as stock

import hotdelta.compat.v1 as tf
from hotdelta.chain import BundleReader, Kind, Manifest, directory_of
from hotdelta.chain.format import names
from hotdelta.compat.v1.chain import open_chains
from hotdelta.compat.v1.chain.session_chain import SessionChain
from hotdelta.compat.v1.chain.session_progress import ChiefProgress
from hotdelta.compat.v1.recording.roll import RecordingRoll
from hotdelta.errors import ConfigurationError, JobRestartedError
from hotdelta.train import Job, TrainerProgress
from hotdelta.train.save.options import WriterOptions
from tests.compat.chain_states import manifests, newest_state, state_of
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
    settle,
    train,
)
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.I6

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


def assert_written_whole(directory: Path, *, times: int) -> None:
    """At least so many deltas have all rows, and the newest has not.

    Nobody stops the workers of a cluster for a cut, and cuts are taken in pauses too: one may fall into the moment in
    which a task is on the roll.
    """
    rows = rows_changed(directory)
    assert rows.count(ROWS) >= times, rows
    assert rows[-1] < ROWS, rows


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
    assert rows_changed(tmp_path)[:2] == [1, 1]
    assert_written_whole(tmp_path, times=1)


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
        assert rows_changed(tmp_path).count(ROWS) >= 1
        assert "tasks=/job:worker/task:1" in caplog.text
        with pytest.raises(ConfigurationError, match=NOT_RECORDED):
            worker.run(other.train, {other.ids: [28, 29]})
        for ids in ([3], [4]):
            train(session, model, [ids])
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
        assert_written_whole(tmp_path, times=2)
        with (
            pytest.raises(ConfigurationError, match=NOT_RECORDED),
            task(cluster, tmp_path, number=1, **NO_DELTAS),
        ):
            pass
        with task(cluster, tmp_path, number=1, **EVERY_STEP) as (recording, again):
            recording.run(again.train, {again.ids: [27]})
        train(session, model, [[5], [6]])
        assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
    assert_written_whole(tmp_path, times=2)


def test_a_task_that_is_gone_without_leaving_the_roll_makes_no_deltas_while_nobody_trains(
    tmp_path: Path,
) -> None:
    cluster = fresh_cluster()
    with task(cluster, tmp_path, **NO_DELTAS), task(cluster, tmp_path, number=1, **NO_DELTAS):
        pass
    with task(cluster, tmp_path, **EVERY_STEP) as (session, model):
        train(session, model, [[2]])
        chain = open_chains._open_chains[tmp_path.resolve()]
        save_in_pauses(chain, times=3)
        rows = rows_changed(tmp_path)
        assert set(rows) == {ROWS}
        save_in_pauses(chain, times=3)
        assert rows_changed(tmp_path) == rows


def save_in_pauses(chain: SessionChain, *, times: int) -> None:
    for _ in range(times):
        chain.save_in_pause()
        chain.wait()


def test_tasks_that_end_leave_nothing_behind_for_the_next_training(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    with task(cluster, tmp_path, **EVERY_STEP) as (session, model), session:
        train(session, model, [[1]])
    for number in (1, 0):
        with task(cluster, tmp_path, number=number, **NO_DELTAS) as (session, model), session:
            train(session, model, [[2]])
    with task(cluster, tmp_path, **EVERY_STEP) as (session, model):
        train(session, model, [[3], [4]])
    assert max(rows_changed(tmp_path)) < ROWS


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


def test_a_lost_session_takes_the_place_of_the_reader_back_with_it(tmp_path: Path) -> None:
    job, loses_session, reader = Job("ranking"), LosesSession(), {"place": 0}
    options: dict[str, Any] = {"hooks": [loses_session], "save_incremental_checkpoint_steps": 2}
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        progress = tf.train.job_progress(tmp_path, job)
        assert progress.resumed is None
        progress.register_state("reader", lambda: reader["place"], lambda place: reader.update(place=place))
        with monitored(tmp_path, progress=progress, **options) as session:
            read_on(session, model, reader, 3)
            loses_session.is_lost = True
            assert session.run(model.step) == 2
            assert reader["place"] == 2
            read_on(session, model, reader, 3)
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        progress = tf.train.job_progress(tmp_path, job)
        assert progress.resumed is not None
        assert (progress.resumed.step, progress.resumed.registered) == (5, {"reader": 5})
        progress.register_state("reader", lambda: reader["place"])
        session = monitored(tmp_path, progress=progress, **options)
        read_on(session, model, reader, 3)
        loses_session.is_lost = True
        with pytest.raises(JobRestartedError, match=r"went back to 3.*a function that restores it"):
            session.run(model.step)


def read_on(session: Any, model: Model, reader: dict[str, int], batches: int) -> None:
    for _ in range(batches):
        reader["place"] += 1
        train(session, model, [[reader["place"]]])


def test_a_job_whose_table_lies_in_other_parts_now_goes_on_with_everybodys_progress(tmp_path: Path) -> None:
    reader = {"place": 0}
    for parts in (1, 2, 2):
        with new_graph():
            model = build_model(Build(parts=parts), tf.train.AdagradOptimizer(0.1))
            chief = tf.train.job_progress(tmp_path, Job("ranking", 0, 2))
            other = TrainerProgress(tmp_path, Job("ranking", 1, 2))
            chief.register_state("reader", lambda: reader["place"])
            other.register_state("reader", lambda: 10 * reader["place"])
            session = monitored(tmp_path, progress=chief)
            if reader["place"]:
                assert places_at_the_newest_commit(tmp_path) == [reader["place"], 10 * reader["place"]]
            read_on(session, model, reader, 2)
            other.close()
            session.close()
    assert [manifest.position.run for manifest in manifests(tmp_path, Kind.FULL)] == [1, 1, 2, 2, 3]


def places_at_the_newest_commit(directory: Path) -> list[Any]:
    states = [tf.train.job_progress(directory, Job("ranking", number, 2)).resumed for number in (0, 1)]
    return [state and state.registered["reader"] for state in states]


def test_a_session_that_cannot_start_leaves_the_directory_to_the_next_one(tmp_path: Path) -> None:
    early = tf.train.job_progress(tmp_path, Job("ranking"))
    early.register_state("reader", lambda: 0)
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        monitored(tmp_path, progress=tf.train.job_progress(tmp_path, Job("ranking"))).close()
        with pytest.raises(JobRestartedError, match="the registered state cannot follow"):
            monitored(tmp_path, progress=early)
        monitored(tmp_path, progress=tf.train.job_progress(tmp_path, Job("ranking"))).close()


# The thread of tf.train that sums gradients ends with its Session, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_workers_that_step_together_are_saved_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker of SyncReplicasOptimizer ends no step without the others; runs of the chief alone are no steps."""
    cluster = fresh_cluster()
    with (
        caplog.at_level(logging.INFO, "hotdelta"),
        together(cluster, tmp_path, 0) as (chief, model),
    ):
        for _ in range(5):
            chief.run(model.loss, {model.ids: [0]})
        with together(cluster, tmp_path, 1) as (worker, other):
            along = threading.Thread(target=step_on, args=(worker, other, 30), daemon=True)
            along.start()
            # However slow the disk is, each full that is due finds the one before it written.
            step_on(chief, model, 30, then=settle)
            along.join(LIMIT_SECONDS)
            worker.close()
        chief.close()
        join_queue_runners()
    assert not [text for text in caplog.messages if text.startswith("nothing is committed reason")]
    fulls = manifests(tmp_path, Kind.FULL)
    assert len(fulls) > 3
    assert len(manifests(tmp_path, Kind.DELTA)) > len(fulls)


@contextmanager
def together(cluster: LocalCluster, directory: Path, number: int) -> Iterator[tuple[Any, Model]]:
    """A Session of one of two workers whose gradients are summed."""
    is_chief = number == 0
    with new_graph():
        with cluster.device():
            optimizer = tf.train.SyncReplicasOptimizer(tf.train.AdagradOptimizer(0.1), 2)
            model = build_model(Build(), optimizer)
        yield (
            monitored(
                directory,
                master=cluster.targets[number],
                is_chief=is_chief,
                hooks=[optimizer.make_session_run_hook(is_chief, num_tokens=0)],
                progress=tf.train.job_progress(directory, Job("ranking", number, 2)),
                save_checkpoint_steps=6,
                # A thread of tf.train waits for gradients that nobody sends any more.
                stop_grace_period_secs=0.1,
            ),
            model,
        )


def join_queue_runners() -> None:
    """So that what they say at their end falls into this test."""
    for thread in threading.enumerate():
        if thread.name.startswith("QueueRunnerThread"):
            thread.join(LIMIT_SECONDS)
            assert not thread.is_alive(), thread.name


def step_on(session: Any, model: Model, steps: int, *, then: Callable[[], None] = lambda: None) -> None:
    for step in range(steps):
        session.run(model.train, {model.ids: [step % ROWS]})
        then()


def test_a_full_and_the_progress_in_it_are_of_one_moment(tmp_path: Path) -> None:
    """Of a worker that trains on as soon as it may."""
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        trained = tf.get_variable("trained", [], tf.int64, initializer=tf.zeros_initializer())
        train_one = trained.assign_add(1)
        scaffold = tf.train.Scaffold(incremental_save_restore=True)
        session = tf.train.ChiefSessionCreator(scaffold).create_session()
        progress = tf.train.job_progress(tmp_path, Job("ranking", 0, 2))
        assert isinstance(progress, ChiefProgress)
        chain = SessionChain(
            scaffold.saver.prepare(),
            tmp_path,
            options=WriterOptions(keep_fulls=9),
            step_tensor=model.step,
            meta_graph=None,
            progress=progress,
        )
        is_over = threading.Event()

        def train_along() -> None:
            with TrainerProgress(tmp_path, Job("ranking", 1, 2)) as other:
                while not is_over.is_set():
                    session.run(train_one)
                    other.step()

        worker = threading.Thread(target=train_along, daemon=True)
        chain.start(session)
        worker.start()
        for number in range(6):
            if number == 5:
                remove_manifests(tmp_path)  # a new chain begins
            full = chain.write_full()
            assert full is not None
            assert state_of(tmp_path, full, [])["trained"] == steps_of_worker_1(tmp_path, full)
        is_over.set()
        worker.join(LIMIT_SECONDS)
        chain.close()


def remove_manifests(directory: Path) -> None:
    for manifest in manifests(directory):
        (directory_of(directory, manifest.kind) / names.manifest_name(manifest.prefix)).unlink()


def steps_of_worker_1(directory: Path, full: Manifest) -> int:
    with BundleReader(directory, full.prefix) as reader:
        state = json.loads(reader.read(names.TRAINER_STATE_TENSOR).tobytes())
    return int(state["trainers"]["1"]["step"])


def test_progress_that_is_not_of_this_worker_or_not_saved_is_refused(tmp_path: Path) -> None:
    chief, other = (tf.train.job_progress(tmp_path, Job("ranking", number, 2)) for number in (0, 1))
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        for progress, is_chief in ((other, True), (chief, False), (Job("ranking"), True)):
            with pytest.raises(ConfigurationError, match="the chief is trainer 0"):
                monitored(tmp_path, progress=progress, is_chief=is_chief)
        with pytest.raises(ConfigurationError, match="no interval for deltas"):
            monitored(tmp_path, progress=chief, save_incremental_checkpoint_steps=None)
        with pytest.raises(ConfigurationError, match="belongs to job 'ranking'"):
            tf.train.job_progress(tmp_path, Job("ads"))
    with new_graph():
        tf.get_variable("weight", [1])
        with pytest.raises(ConfigurationError, match="needs a global step"):
            monitored(tmp_path, progress=other, is_chief=False)


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

"""Sessions that are used in other ways than one for each graph and one save at the end."""

from __future__ import annotations

import gc
import logging
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind
from hotdelta.errors import ConfigurationError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_graphs import (
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)


def leave_deltas(directory: Path) -> None:
    """As a trainer that was killed does."""
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with suppress(ZeroDivisionError), monitored(directory) as session:
            train(session, model, [[1], [2]])
            raise ZeroDivisionError


@pytest.mark.parametrize("kind", ["touched", "changed"])
def test_what_is_written_after_the_last_step_was_saved_is_in_a_last_delta(tmp_path: Path, kind: str) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        write = (
            tf.scatter_update(model.table, [2], tf.zeros([1, 4]))
            if kind == "touched"
            else tf.assign(model.table, model.table * 0.5)
        )
        with monitored(tmp_path, save_checkpoint_steps=1) as session:
            train(session, model, [[1], [2]])
            session.run(write)
            last = live_state(session._tf_sess())
    assert_same_bits(newest_state(tmp_path), last)
    newest = manifests(tmp_path)[-1]
    assert (newest.kind, newest.step, newest.tables["table"].tracking) == (Kind.DELTA, 2, kind)


def test_a_graph_that_was_trained_before_starts_a_chain_elsewhere(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        for directory, steps in (("one", 2), ("one", 4), ("two", 2)):
            with monitored(tmp_path / directory) as session:
                train(session, model, [[1], [2]])
                last = live_state(session._tf_sess())
            assert_same_bits(newest_state(tmp_path / directory), last)
            assert int(last["global_step"]) == steps


def test_a_graph_that_grows_after_it_was_made_ready_for_deltas_is_refused(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            train(session, model, [[1]])
        tf.train.GradientDescentOptimizer(0.1).minimize(model.loss, global_step=model.step)
        with pytest.raises(ConfigurationError, match="ScatterSub: not there when the graph"):
            monitored(tmp_path)


def test_a_new_variable_for_a_graph_that_was_made_ready_for_deltas_is_refused(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path / "old") as session:
            train(session, model, [[1]])
        tf.get_variable("late", [2])
        saver = tf.train.Saver(tf.global_variables(), incremental_save_restore=True)
        scaffold = tf.train.Scaffold(saver=saver, incremental_save_restore=True)
        with pytest.raises(ConfigurationError, match="late: not there when the graph"):
            monitored(tmp_path / "new", scaffold=scaffold)


@pytest.mark.parametrize("late", ["assign", "dense", "compared"])
def test_a_graph_may_grow_by_writers_of_what_is_compared(tmp_path: Path, late: str) -> None:
    first = tf.train.AdamOptimizer if late == "compared" else tf.train.AdagradOptimizer
    with new_graph():
        model = build_model(Build(), first(0.1))
        with monitored(tmp_path) as session:
            train(session, model, [[1], [2]])
        (kernel,) = (each for each in tf.trainable_variables() if each.op.name == "kernel")
        if late == "assign":
            write = tf.assign(kernel, kernel * 0.5)
        else:
            trained = [kernel] if late == "dense" else [kernel, model.table]
            optimizer = tf.train.GradientDescentOptimizer(0.1)
            write = optimizer.minimize(model.loss, global_step=model.step, var_list=trained)
        with monitored(tmp_path) as session:
            session.run(write, {model.ids: [3]})
            train(session, model, [[4], [5], [6]])
            session.run(write, {model.ids: [7]})
            last = live_state(session._tf_sess())
        assert_same_bits(newest_state(tmp_path), last)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_secs=None
        ) as reader:
            assert_same_bits(live_state(reader._tf_sess()), last)


def test_a_saver_restores_no_variable_without_its_deltas(tmp_path: Path) -> None:
    leave_deltas(tmp_path)
    newest = newest_state(tmp_path)
    with new_graph():
        model = build_model(Build())
        full = tf.train.latest_checkpoint(str(tmp_path))
        both = [model.table, *(each for each in tf.trainable_variables() if each.op.name == "kernel")]
        with tf.Session() as session:
            one = tf.train.Saver([model.table], incremental_save_restore=True)
            one.restore(session, full)
            with pytest.raises(ConfigurationError, match="kernel: not there when the graph"):
                tf.train.Saver(both, incremental_save_restore=True).restore(session, full)
            session.run(tf.scatter_update(model.table, [1], tf.zeros([1, 4])))
            one.restore(session, full)
            assert_same_bits({"table": session.run(model.table)}, {"table": newest["table"]})


def test_a_supervisor_does_not_go_on_with_a_chain_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_deltas(tmp_path)
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with pytest.raises(ConfigurationError, match="holds a chain"):
            tf.train.Supervisor(logdir=str(tmp_path))
    with new_graph(), caplog.at_level(logging.WARNING, "hotdelta"):
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        reader = tf.train.Supervisor(logdir=str(tmp_path), save_model_secs=0, summary_writer=None)
        with reader.managed_session():
            pass
    assert "only a Saver with incremental_save_restore=True restores them" in caplog.text


@pytest.mark.parametrize("start", ["init_from_checkpoint", "warm_start"])
def test_a_warm_start_says_which_deltas_it_does_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: str
) -> None:
    leave_deltas(tmp_path)
    with new_graph(), caplog.at_level(logging.WARNING, "hotdelta"):
        build_model(Build())
        if start == "warm_start":
            tf.train.warm_start(tmp_path, vars_to_warm_start="table")
        else:
            tf.train.init_from_checkpoint(str(tmp_path), {"table": "table"})
    assert "an old state is read" in caplog.text


def test_fetches_may_have_keys_of_any_kind(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path, save_incremental_checkpoint_steps=1) as session:
            assert session.run({1: model.step, "train": [model.train]}, {model.ids: [3]})[1] in (0, 1)
            last = live_state(session._tf_sess())
    assert_same_bits(newest_state(tmp_path), last)


def test_a_directory_that_tensorflow_takes_for_a_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="for a pattern"):
        monitored(tmp_path / "run[1]")


class LosesItsSession(tf.train.SessionRunHook):
    """After the third step, once."""

    def __init__(self) -> None:
        self._steps = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._steps += 1
        if self._steps == 3:
            raise tf.errors.AbortedError(None, None, "the Session is lost")


def test_a_session_that_was_lost_is_made_anew_from_any_default_graph(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        session = monitored(tmp_path, hooks=[LosesItsSession()])
    with new_graph():
        train(session, model, [[1], [2], [3], [4], [5]])
        last = live_state(session._tf_sess())
        session.close()
    assert_same_bits(newest_state(tmp_path), last)
    assert int(last["global_step"]) == 5


def test_a_graph_that_was_trained_is_not_kept(tmp_path: Path) -> None:
    graphs = []
    for _ in range(2):
        with new_graph():
            graphs.append(weakref.ref(tf.get_default_graph()))
            model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
            with monitored(tmp_path) as session:
                train(session, model, [[1]])
            del model, session
    gc.collect()
    assert graphs[0]() is None


def test_a_worker_made_by_hand_that_does_not_record_is_refused(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    with new_graph():
        with cluster.device():
            model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        chief = monitored(tmp_path, master=cluster.target, save_incremental_checkpoint_steps=2)
    with new_graph():
        with cluster.device():
            build_model(Build(), tf.train.AdagradOptimizer(0.1))
        creator = tf.train.WorkerSessionCreator(master=cluster.targets[1])
        with pytest.raises(ConfigurationError, match="does not record"):
            tf.train.MonitoredSession(creator)
    with new_graph():
        with cluster.device():
            other = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        scaffold = tf.train.Scaffold(incremental_save_restore=True)
        worker = tf.train.MonitoredSession(tf.train.WorkerSessionCreator(scaffold, cluster.targets[1]))
        worker.run(other.train, {other.ids: [9]})
    train(chief, model, [[1]])
    assert_same_bits(newest_state(tmp_path), live_state(chief._tf_sess()))
    assert sum(delta.tables["table"].rows_changed for delta in manifests(tmp_path, Kind.DELTA)) < 5
    worker.close()
    chief.close()


# As TensorFlow said it of a worker that was waiting in a look-up by keys when a server was killed.
LOST_SERVER = """
=====================
CANCELLED: From /job:worker/replica:0/task:1:
RecvFromRemoteAsync is cancelled.
\t [[{{function_node __inference_alone_6325}}{{node NoOp}}]]
ABORTED: From /job:ps/replica:0/task:0:
Session handle is not found: 8a182280e9c0a499. Possibly this worker ("/job:ps/replica:0/task:0") just restarted.
====================="""


class FailingOnce(tf.train.SessionRunHook):
    """The first step of the first Session fails so."""

    def __init__(self, message: str) -> None:
        self._messages = [message]
        self.sessions = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.sessions += 1
        run = session.run

        def fail(fetches: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(fetches, dict) and "caller" in fetches and self._messages:
                raise tf.errors.CancelledError(None, None, self._messages.pop())
            return run(fetches, *args, **kwargs)

        session.run = fail


@pytest.mark.I6
@pytest.mark.parametrize("options", [{}, {"save_incremental_checkpoint_steps": None}])
def test_a_step_that_a_lost_server_has_cancelled_is_made_again(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    cluster = fresh_cluster()
    failing = FailingOnce(LOST_SERVER)
    with new_graph():
        with cluster.device():
            model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path, master=cluster.target, hooks=[failing], **options) as session:
            train(session, model, [[1], [2]])
            assert session.run(model.step) == 2
    assert failing.sessions == 2


def test_a_step_that_somebody_has_cancelled_ends_the_session(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    failing = FailingOnce("the user has cancelled it")
    with new_graph():
        with cluster.device():
            model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with (
            pytest.raises(tf.errors.CancelledError, match="the user"),
            monitored(tmp_path, master=cluster.target, hooks=[failing]) as session,
        ):
            train(session, model, [[1]])


def test_the_longer_name_of_tensorflow_1_is_the_same() -> None:
    assert tf.compat.v1.train.MonitoredTrainingSession is tf.train.MonitoredTrainingSession
    assert tf.compat.v1.placeholder is tf.placeholder
    assert tf.compat.as_bytes("text") == b"text"

"""What stock TensorFlow makes of our directories, what we make of its, and configurations that cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as stock

import hotdelta.compat.v1 as tf
from hotdelta.chain.format.manifest import Kind
from hotdelta.errors import ConfigurationError, DirectoryBusyError, ModelMismatchError
from hotdelta.train.checkpoint_config import CheckpointConfig
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.small_graphs import (
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)

BATCHES = ([1, 5, 5], [2], [29, 0, 13], [5, 7], [8, 9])
v1 = stock.compat.v1


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_stock_tensorflow_reads_our_fulls(tmp_path: Path, use_resource: bool) -> None:
    build = Build(parts=3, use_resource=use_resource)
    with new_graph():
        model = build_model(build, tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path, save_graph_def=True) as session:
            train(session, model, BATCHES)
            state = live_state(session._tf_sess())
    latest = stock.train.latest_checkpoint(str(tmp_path))
    assert latest == str(tmp_path / "model.ckpt-5")
    shapes = dict(stock.train.list_variables(latest))
    assert shapes["table"] == [30, 4]
    assert shapes["table/Adagrad"] == [30, 4]
    assert stock.train.load_variable(latest, "table").tobytes() == state["table"].tobytes()
    with new_graph():
        build_model(build, tf.train.AdagradOptimizer(0.1))
        with v1.Session() as session:
            v1.train.Saver(sharded=True).restore(session, latest)
            assert_same_bits(live_state(session), state)
    with v1.Graph().as_default(), v1.Session() as session:
        saver = v1.train.import_meta_graph(f"{latest}.meta")
        saver.restore(session, latest)
        (train_op,) = v1.get_collection("train_op")
        session.run(train_op, {"ids:0": [1]})
        assert session.run(v1.train.get_global_step()) == 6
    assert {"checkpoint", "graph.pbtxt"} <= {path.name for path in tmp_path.iterdir()}
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_we_go_on_from_a_directory_of_stock_tensorflow(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
        with v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            train(session, model, BATCHES)
            state = live_state(session._tf_sess())
    with new_graph():
        model = build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            assert_same_bits(live_state(session._tf_sess()), state)
            train(session, model, BATCHES[:3])
    assert [manifest.step for manifest in manifests(tmp_path, Kind.FULL)] == [5, 8]


def test_the_five_newest_fulls_are_kept_and_first_and_last_step_are_saved(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(
            tmp_path, save_checkpoint_steps=2, save_incremental_checkpoint_steps=1, save_graph_def=True
        ) as session:
            assert [manifest.step for manifest in manifests(tmp_path, Kind.FULL)] == [0]
            train(session, model, [[1]] * 15)
    assert [manifest.step for manifest in manifests(tmp_path, Kind.FULL)] == [8, 10, 12, 14, 15]
    assert len(list(tmp_path.glob("*.meta"))) == 5
    state = stock.train.get_checkpoint_state(str(tmp_path))
    assert len(state.all_model_checkpoint_paths) == 5


class Listener(tf.train.CheckpointSaverListener):
    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def after_save(self, session: Any, global_step_value: int) -> None:
        self.told.append(("full", int(global_step_value)))

    def after_incremental_save(self, session: Any, global_step_value: int) -> bool | None:
        self.told.append(("delta", int(global_step_value)))
        return None


def test_listeners_can_tell_a_full_from_a_delta(tmp_path: Path) -> None:
    listener = Listener()
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        saver = tf.train.Saver(sharded=True, incremental_save_restore=True)
        scaffold = tf.train.Scaffold(saver=saver, incremental_save_restore=True)
        hook = tf.train.CheckpointSaverHook(
            str(tmp_path), save_steps=4, scaffold=scaffold, listeners=[listener], incremental_save_steps=1
        )
        creator = tf.train.ChiefSessionCreator(scaffold, checkpoint_dir=str(tmp_path))
        with tf.train.MonitoredSession(creator, hooks=[hook]) as session:
            train(session, model, [[1]] * 5)
    deltas = [("delta", step) for step in (1, 2, 3)]
    assert listener.told == [("full", 0), *deltas, ("full", 4), ("delta", 5), ("full", 5)]


class Impatient(Listener):
    def after_incremental_save(self, session: Any, global_step_value: int) -> bool:
        super().after_incremental_save(session, global_step_value)
        return True


@pytest.mark.parametrize("save_steps", [4, 1000], ids=["told by the next full", "told by a later step"])
def test_a_listener_that_was_told_of_a_delta_can_stop_training(tmp_path: Path, save_steps: int) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        scaffold = incremental_scaffold()
        hook = tf.train.CheckpointSaverHook(
            str(tmp_path),
            save_steps=save_steps,
            scaffold=scaffold,
            listeners=[Impatient()],
            incremental_save_steps=3,
        )
        with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), hooks=[hook]) as session:
            train(session, model, [[1]] * 4)
            assert session.should_stop()


def test_a_changed_model_is_refused_with_both_shapes_also_without_deltas(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(hidden=10), tf.train.AdagradOptimizer(0.1))
        with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            train(session, model, BATCHES)
    with new_graph():
        build_model(Build(hidden=20), tf.train.AdagradOptimizer(0.1))
        problem = r"kernel: shape \[4, 20\] in the model, \[4, 10\]"
        with pytest.raises(tf.errors.InvalidArgumentError, match=problem) as caught:
            tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path))
    assert isinstance(caught.value, ModelMismatchError)
    assert stock.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-5")


def test_a_variable_whose_shape_is_not_known_is_restored(tmp_path: Path) -> None:
    for values in ([1.0, 2.0], [7.0]):
        with new_graph():
            given = tf.placeholder_with_default(tf.constant(values), None)
            variable = tf.Variable(given, validate_shape=False)
            count = tf.assign_add(tf.train.get_or_create_global_step(), 1)
            with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
                session.run(count)
                assert session.run(variable).tolist() == [1.0, 2.0]


def test_a_directory_has_one_trainer(tmp_path: Path) -> None:
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path), new_graph():
            build_model(Build(), tf.train.AdagradOptimizer(0.1))
            with pytest.raises(DirectoryBusyError):
                monitored(tmp_path)


def test_training_that_failed_can_be_started_again_in_the_same_process(tmp_path: Path) -> None:
    for _ in range(2):
        with new_graph():
            model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
            with pytest.raises(tf.errors.InvalidArgumentError), monitored(tmp_path) as session:
                train(session, model, [*BATCHES, [-1]])
    assert manifests(tmp_path)[-1].position.run == 2


def plain_scaffold() -> Any:
    return tf.train.Scaffold()


def incremental_scaffold() -> Any:
    return tf.train.Scaffold(incremental_save_restore=True)


@pytest.mark.parametrize(
    "make,missing",
    [
        (lambda: tf.train.CheckpointSaverHook("d", 1, incremental_save_secs=1), "no scaffold"),
        (
            lambda: tf.train.CheckpointSaverHook("d", 1, scaffold=plain_scaffold(), incremental_save_secs=1),
            "incremental_save_restore=True",
        ),
        (
            lambda: tf.train.CheckpointSaverHook(
                "d", scaffold=incremental_scaffold(), incremental_save_secs=1
            ),
            "save_secs or save_steps",
        ),
        (
            lambda: tf.train.Scaffold(saver=tf.train.Saver(allow_empty=True), incremental_save_restore=True),
            "incremental_save_restore=True",
        ),
        (
            lambda: tf.train.MonitoredTrainingSession(
                checkpoint_dir="d", save_checkpoint_secs=None, save_incremental_checkpoint_secs=1
            ),
            "save_checkpoint_secs or save_checkpoint_steps",
        ),
        (
            lambda: tf.train.MonitoredTrainingSession(
                checkpoint_dir="d", scaffold=plain_scaffold(), save_incremental_checkpoint_secs=1
            ),
            "incremental_save_restore=True",
        ),
        (lambda: tf.train.MonitoredTrainingSession(save_incremental_checkpoint_secs=1), "checkpoint_dir"),
        (
            lambda: tf.train.MonitoredTrainingSession(checkpoint_dir="d", scaffold=incremental_scaffold()),
            "save_incremental_checkpoint_secs",
        ),
        (
            lambda: tf.train.CheckpointSaverHook("d", 1, scaffold=incremental_scaffold()),
            "incremental_save_secs or incremental_save_steps",
        ),
        (
            lambda: tf.train.MonitoredTrainingSession(
                checkpoint_dir="abfs://bucket/run", save_incremental_checkpoint_secs=1
            ),
            "no address of a store",
        ),
        (
            lambda: tf.train.CheckpointSaverHook(
                CheckpointConfig("abfs://bucket/run"), scaffold=incremental_scaffold()
            ),
            "no address of a store",
        ),
        (lambda: tf.estimator.Estimator(lambda: None, "abfs://bucket/run"), "no address of a store"),
        (lambda: tf.saved_model.Builder("gs://bucket/export"), "mount it"),
        (lambda: tf.saved_model.simple_save(None, "gs://bucket/export", {}, {}), "mount it"),
        (
            lambda: tf.train.Saver(incremental_save_restore=True).save(None, "d"),
            "CheckpointSaverHook with incremental_save_secs",
        ),
    ],
)
def test_what_would_silently_do_nothing_is_refused(make: Any, missing: str) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match=missing):
        make()


def test_everything_of_tensorflow_1_is_there_in_graph_mode() -> None:
    from hotdelta.compat.v1 import train as train_module

    assert train_module.AdagradOptimizer is v1.train.AdagradOptimizer
    assert tf.logging.INFO == v1.logging.INFO
    assert set(dir(v1)) <= set(dir(tf))
    assert not tf.executing_eagerly()
    assert isinstance(tf.constant(np.float32(1)).graph, tf.Graph)

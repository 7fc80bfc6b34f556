"""Updates that are put together of those of all replicas, and moving averages of what they make of the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hotdelta.compat.v1 as tf
from exporter.loaded_graph import LoadedGraph
from hotdelta.chain import Kind
from hotdelta.chain.format.manifest import Tracking
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_chain
from hotdelta.errors import ConfigurationError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.checks_of_exports import INCREMENTAL, export, predictions, rows_of, served
from tests.compat.graph_mode.local_cluster import LocalCluster, fresh_cluster
from tests.compat.graph_mode.small_graphs import (
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
from tests.waiting import wait_until

BUILD = Build(parts=2)
REPLICAS, ROUNDS = 2, 6
# A thread of the chief puts them together. What the replicas send in the second round comes too late for the first
# update, and too early for the second: tf.train lets them begin it before the first update is there.
UPDATES = ROUNDS - 1


@contextmanager
def replica(cluster: LocalCluster, directory: Path, number: int) -> Iterator[tuple[Any, Model, Any]]:
    """A Session of replica `number`, its model, and the rows of all ids. Replica 0 is the chief."""
    with new_graph():
        with cluster.device():
            optimizer = tf.train.SyncReplicasOptimizer(
                tf.train.AdagradOptimizer(0.1), replicas_to_aggregate=REPLICAS, total_num_replicas=REPLICAS
            )
            model = build_model(BUILD, optimizer)
            rows = rows_of(model, BUILD)
        session = monitored(
            directory,
            master=cluster.targets[number],
            is_chief=number == 0,
            save_incremental_checkpoint_steps=1,
            hooks=[optimizer.make_session_run_hook(number == 0)],
            # A thread of tf.train waits for gradients that nobody sends any more.
            stop_grace_period_secs=0.1,
        )
        yield session, model, rows
        session.close()


def test_synchronous_replicas_are_saved_resumed_and_exported(tmp_path: Path) -> None:
    cluster, run_dir, together = fresh_cluster(), tmp_path / "run", threading.Barrier(REPLICAS)

    def work(session: Any, model: Model, first_id: int) -> None:
        for number in range(ROUNDS):
            together.wait(60)
            session.run(model.train, {model.ids: [first_id + number]})

    with replica(cluster, run_dir, 0) as (chief, model, rows):

        def is_saved() -> bool:
            chief.run(model.loss, {model.ids: [0]})
            settle()
            return int(newest_state(run_dir)["global_step"]) == UPDATES

        with replica(cluster, run_dir, 1) as (worker, other, _):
            thread = threading.Thread(target=work, args=(worker, other, 10))
            thread.start()
            work(chief, model, 20)
            thread.join()
        wait_until(is_saved, "the last update is saved")
        expected = live_state(chief._tf_sess())
        assert_same_bits(newest_state(run_dir), expected)
        with LoadedGraph(export(BUILD, run_dir, tmp_path / "export")) as graph:
            assert served(graph) == predictions(chief._tf_sess(), model, rows)
    deltas = [delta.tables["table"] for delta in manifests(run_dir, Kind.DELTA)]
    assert {delta.tracking for delta in deltas} == {Tracking.TOUCHED}
    assert 0 < max(delta.rows_changed for delta in deltas) <= REPLICAS * ROUNDS
    cluster.forget()
    with replica(cluster, run_dir, 0) as (chief, _, _):
        assert_same_bits(live_state(chief._tf_sess()), expected)


@pytest.mark.parametrize(
    "build,zero_debias",
    [(Build(parts=3), False), (Build(use_resource=True), True)],
    ids=["ref in parts", "resource"],
)
def test_moving_averages_of_a_table_are_saved_and_resumed(
    tmp_path: Path, build: Build, zero_debias: bool
) -> None:
    def start(directory: Path) -> tuple[Any, Model]:
        model = build_model(build, tf.train.AdagradOptimizer(0.1))
        averages = tf.train.ExponentialMovingAverage(0.9, zero_debias=zero_debias)
        with tf.control_dependencies([model.train]):
            model.train = averages.apply(tf.trainable_variables())
        return monitored(directory, save_incremental_checkpoint_steps=1), model

    with new_graph():
        straight, model = start(tmp_path / "straight")
        train(straight, model, [[1, 2], [29], [3], [4]])
        expected = live_state(straight._tf_sess())
        straight.close()
    for batches in ([[1, 2], [29]], [[3], [4]]):
        with new_graph():
            session, model = start(tmp_path / "killed")
            for ids in batches:
                train(session, model, [ids])
                assert_same_bits(newest_state(tmp_path / "killed"), live_state(session._tf_sess()))
            session._tf_sess().close()
    assert_same_bits(newest_state(tmp_path / "killed"), expected)
    deltas = manifests(tmp_path / "killed", Kind.DELTA)
    assert [delta.tables["table"].rows_changed for delta in deltas] == [2, 1, 1, 1]


def test_averages_are_not_served_and_an_export_of_them_says_so(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        averages = tf.train.ExponentialMovingAverage(0.9)
        model.train = tf.group(model.train, averages.apply([model.table]))
        with monitored(tmp_path / "run") as session:
            train(session, model, [[1], [2]])
        rows = tf.nn.embedding_lookup(averages.average(model.table), model.ids)
        signature = GraphSignature({"ids": model.ids}, {"rows": rows})
        with pytest.raises(ConfigurationError, match="'table/ExponentialMovingAverage', which is not served"):
            export_chain({"serving_default": signature}, tmp_path / "run", tmp_path / "export", INCREMENTAL)

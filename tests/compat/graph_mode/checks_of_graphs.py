"""Graphs as people build them: scopes, conds and loops, warm starts, layers in scopes with partitioners."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hotdelta.compat.v1 as tf
import hotdelta.io as hio
from exporter.export import ExportOptions
from exporter.loaded_graph import LoadedGraph
from hotdelta.chain import BundleReader, directory_of
from hotdelta.chain.format.manifest import Kind, Manifest, Tracking
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_session
from hotdelta.errors import ConfigurationError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.local_cluster import fresh_cluster
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

BATCHES = ([1], [2], [29], [5])


def trained(directory: Path, model: Model, **options: Any) -> Manifest:
    """The first delta, of two steps, of a training whose deltas are exact."""
    with monitored(directory, **options) as session:
        train(session, model, BATCHES)
        settle()
        assert_same_bits(newest_state(directory), live_state(session._tf_sess()))
    return manifests(directory, Kind.DELTA)[0]


def model_in_scope(optimizer: Any, *, parts: int = 1) -> Model:
    partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
    with tf.variable_scope("model"):
        table = tf.get_variable("table", [30, 4], partitioner=partitioner)
        ids = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, ids)))
        step = tf.train.get_or_create_global_step()
        return Model(ids, table, loss, step, optimizer.minimize(loss, global_step=step))


@pytest.mark.parametrize("place", ["one process", "cluster"])
def test_slots_of_an_optimizer_inside_a_scope_are_slots(tmp_path: Path, place: str) -> None:
    """There tf.train calls them `<scope>/<variable>/<optimizer>`."""
    with new_graph():
        if place == "cluster":
            cluster = fresh_cluster()
            with cluster.device():
                model = model_in_scope(tf.train.AdagradOptimizer(0.1))
            delta = trained(tmp_path, model, master=cluster.target)
        else:
            delta = trained(tmp_path, model_in_scope(tf.train.AdagradOptimizer(0.1)))
    assert list(delta.tables) == ["model/table"]
    assert delta.tables["model/table"].rows_changed == 2
    schema = next(directory_of(tmp_path, Kind.DELTA).glob("schema-*.json")).read_text()
    assert "Adagrad" not in schema
    with BundleReader(directory_of(tmp_path, Kind.DELTA), delta.prefix) as reader:
        assert reader.read("model/model/table/Adagrad-ids").tolist() == [1, 2]
    with new_graph():
        build_and_resume(tmp_path)


def build_and_resume(directory: Path) -> None:
    """In one process, whoever trained: the rows of the slots are found where they are."""
    model = model_in_scope(tf.train.AdagradOptimizer(0.1))
    saved = newest_state(directory)
    with monitored(directory) as session:
        assert_same_bits(live_state(session._tf_sess()), saved)
        train(session, model, BATCHES[:1])


def two_tables(*, parts: int = 1) -> Model:
    """The slot `items/users` is of the table `items`: the optimizer has the name of the other table."""
    partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
    items = tf.get_variable("items", [30, 4], partitioner=partitioner)
    users = tf.get_variable("users", [30, 4])
    ids = tf.placeholder(tf.int64, [None])
    rows = tf.nn.embedding_lookup(items, ids), tf.nn.embedding_lookup(users, (ids + 7) % 30)
    loss = tf.reduce_sum(tf.square(rows[0] * rows[1]))
    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.AdagradOptimizer(0.1, name="users")
    return Model(ids, items, loss, step, optimizer.minimize(loss, global_step=step))


@pytest.mark.parametrize("parts", [0, 1, 2], ids=["loaded", "restored", "moved"])
def test_a_slot_may_be_named_like_another_table(tmp_path: Path, parts: int) -> None:
    with new_graph():
        model = two_tables()
        with suppress(ZeroDivisionError), monitored(tmp_path) as session:
            train(session, model, BATCHES)
            raise ZeroDivisionError
    saved = newest_state(tmp_path)
    with new_graph():
        two_tables(parts=parts)
        if parts == 0:
            with tf.Session() as session:
                hio.load_persistables(session, tmp_path)
                found = live_state(session)
        else:
            with monitored(tmp_path) as session:
                found = live_state(session._tf_sess())
    for key in ("items/users", "users/users"):
        moved = parts == 2 and key == "items/users"
        rows = [*range(0, 30, 2), *range(1, 30, 2)] if moved else [*range(30)]
        assert found[key].tolist() == saved[key][rows].tolist(), key


def test_slots_of_parts_that_tensorflow_misnames_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with new_graph():
        model_in_scope(tf.train.AdagradOptimizer(0.1), parts=2)
        with pytest.raises(ConfigurationError, match="outside of every variable_scope"):
            monitored(tmp_path)


@pytest.mark.parametrize("use_resource,parts", [(False, 2), (True, 1)], ids=["ref in parts", "resource"])
def test_a_table_that_is_trained_in_a_cond_is_compared(
    tmp_path: Path, use_resource: bool, parts: int
) -> None:
    """Nothing outside of the cond shows that it is a table."""
    partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
    with new_graph():
        with tf.variable_scope("", use_resource=use_resource, partitioner=partitioner):
            table = tf.get_variable("table", [30, 4])
        ids = tf.placeholder(tf.int64, [None])
        step = tf.train.get_or_create_global_step()

        def minimize() -> Any:
            loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, ids)))
            return tf.group(tf.train.GradientDescentOptimizer(0.1).minimize(loss, step))

        train_op = tf.cond(tf.size(ids) > 0, minimize, tf.group)
        delta = trained(tmp_path, Model(ids, table, None, step, train_op)).tables["table"]
    assert (delta.tracking, delta.rows_changed) == (Tracking.CHANGED, 2)


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_a_table_of_which_rows_are_looked_up_in_a_cond_is_touched_and_exported(
    tmp_path: Path, use_resource: bool
) -> None:
    with new_graph():
        with tf.variable_scope("", use_resource=use_resource):
            table = tf.get_variable("table", [30, 4])
        ids = tf.placeholder(tf.int64, [None])
        found = tf.cond(
            tf.size(ids) > 0, lambda: tf.nn.embedding_lookup(table, ids), lambda: tf.zeros([0, 4])
        )
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdagradOptimizer(0.1)
        train_op = optimizer.minimize(tf.reduce_sum(tf.square(found)), global_step=step)
        delta = trained(tmp_path, Model(ids, table, found, step, train_op)).tables["table"]
        assert (delta.tracking, delta.rows_changed) == (Tracking.TOUCHED, 2)
        signature = {"serving_default": GraphSignature({"ids": ids}, {"rows": found})}
        options = ExportOptions(save_incr_model=True)
        with tf.Session() as session:
            session.run([variable.initializer for variable in tf.global_variables()])
            path = export_session(session, signature, tmp_path / "export", options)
    with LoadedGraph(path) as graph:
        assert graph.call("serving_default", {"ids": [3, 4]})["rows"].shape == (2, 4)


def test_a_warm_start_does_not_make_the_table_compared(tmp_path: Path) -> None:
    with new_graph():
        trained(tmp_path / "old", build_model(Build(), tf.train.AdagradOptimizer(0.1)))
    old = newest_state(tmp_path / "old")["table"]
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        tf.train.init_from_checkpoint(str(tmp_path / "old"), {"table": "table"})
        delta = trained(tmp_path / "new", model).tables["table"]
    assert delta.tracking is Tracking.TOUCHED
    assert newest_state(tmp_path / "new")["table"][10].tobytes() == old[10].tobytes()


def test_layers_work_where_variables_are_partitioned(tmp_path: Path) -> None:
    with new_graph():
        with tf.variable_scope("model", partitioner=tf.fixed_size_partitioner(2)):
            table = tf.get_variable("table", [30, 4])
            ids = tf.placeholder(tf.int64, [None])
            rows = tf.nn.embedding_lookup(table, ids)
            hidden = tf.layers.batch_normalization(rows, training=True, fused=True)
            hidden = tf.layers.dropout(tf.layers.dense(hidden, 4, tf.nn.relu), training=True)
        loss = tf.reduce_sum(tf.square(hidden))
        step = tf.train.get_or_create_global_step()
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        delta = trained(tmp_path, Model(ids, table, loss, step, train_op))
    assert delta.tables["model/table"].tracking is Tracking.TOUCHED


@pytest.mark.parametrize(
    "layer",
    [
        lambda inputs: tf.layers.batch_normalization(inputs, renorm=True),
        lambda inputs: tf.layers.batch_normalization(inputs, virtual_batch_size=2),
        lambda inputs: tf.layers.flatten(inputs, data_format="channels_first"),
    ],
)
def test_what_a_layer_does_not_do_is_refused(layer: Callable[[Any], Any]) -> None:
    with new_graph(), pytest.raises(ConfigurationError):
        layer(tf.ones([2, 3]))

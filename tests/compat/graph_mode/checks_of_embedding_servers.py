"""Embedding variables on parameter servers, whole and in parts: trained by several workers, saved, resumed, served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from exporter.export import ExportOptions
from hotdelta.chain.format.manifest import Kind
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_chain
from hotdelta.errors import ConfigurationError, ModelMismatchError
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.local_cluster import LocalCluster, fresh_cluster
from tests.compat.graph_mode.small_graphs import monitored, new_graph, settle

WIDTH, MAX_ROWS = 4, 100_000
KEYS = np.concatenate([np.arange(-20, 60), [2**62, -(2**62), -(2**63), 2**63 - 1]])


@dataclass
class Model:
    variable: Any
    ids: Any
    rows: Any
    prediction: Any
    train: Any
    asked: dict[str, Any]

    def ask(self, session: Any) -> dict[str, np.ndarray]:
        """What users see of it."""
        raw = session._tf_sess() if hasattr(session, "_tf_sess") else session
        found: dict[str, np.ndarray] = raw.run(self.asked, {self.ids: KEYS})
        return found


def build(parts: int, *, optimizer: Any = None, initializer: Any = None, **options: Any) -> Model:
    variable = tf.get_embedding_variable(
        "emb",
        WIDTH,
        initializer=initializer or tf.truncated_normal_initializer(seed=3),
        partitioner=tf.fixed_size_partitioner(parts),
        ev_option=tf.EmbeddingVariableOption(max_rows=MAX_ROWS, **options),
    )
    ids = tf.placeholder(tf.int64, [None])
    rows = tf.nn.embedding_lookup(variable, ids)
    weights = tf.get_variable("weights", [WIDTH, 1], initializer=tf.ones_initializer())
    prediction = tf.matmul(rows, weights)
    with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
        step = tf.train.get_or_create_global_step()
    optimizer = optimizer or tf.train.AdagradOptimizer(0.1)
    train = optimizer.minimize(tf.reduce_sum(tf.square(prediction - 1)), global_step=step)
    asked = {"rows": rows, "prediction": prediction, "count": variable.total_count()}
    if options:
        asked["frequency"] = variable.get_frequency(ids)
    return Model(variable, ids, rows, prediction, train, asked)


@contextmanager
def on_servers(cluster: LocalCluster, parts: int, worker: int = 0, **options: Any) -> Iterator[Model]:
    """The model in a graph of its own, as each worker builds it."""
    setter = tf.train.replica_device_setter(cluster=cluster.spec, worker_device=f"/job:worker/task:{worker}")
    with new_graph():
        with tf.device(setter):
            model = build(parts, **options)
        yield model


def step(session: Any, model: Model, *fed: Any) -> None:
    for ids in fed:
        session.run(model.train, {model.ids: ids})
        settle()


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value.view(np.uint8), other[name].view(np.uint8), err_msg=name)


def batches(count: int, *, seed: int = 0, keys: np.ndarray = KEYS) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.choice(keys, 24) for _ in range(count)]


# Where they are, and what is trained.


def test_all_of_a_part_is_where_its_rows_are() -> None:
    with on_servers(fresh_cluster(), 3, filter_option=tf.CounterFilter(2)) as model:
        shards = list(model.variable)
        assert [shard.device for shard in shards] == [f"/job:ps/task:{number}" for number in (0, 1, 0)]
        for shard in shards:
            held = [
                operation
                for operation in tf.get_default_graph().get_operations()
                if operation.type in ("VarHandleOp", "MutexV2", "StatefulPartitionedCall")
                and (operation.name.startswith((shard.op.name, f"embedding_lookup/{shard.op.name}_")))
            ]
            assert len(held) > 15
            assert {operation.device for operation in held} == {shard.device}


def trained(model: Model, target: str) -> dict[str, np.ndarray]:
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        step(session, model, *batches(6))
        return model.ask(session)


# AdamAsync has powers of beta for each part.
@pytest.mark.parametrize("optimizer, parts", [("Adam", 2), ("AdamAsync", 1)])
def test_parts_on_servers_are_trained_as_one_table_in_one_process(optimizer: str, parts: int) -> None:
    options: dict[str, Any] = {"filter_option": tf.CounterFilter(2), "initializer": tf.ones_initializer()}
    with new_graph():
        expected = trained(build(1, optimizer=_optimizer(optimizer), **options), "")
    cluster = fresh_cluster()
    with on_servers(cluster, parts, optimizer=_optimizer(optimizer), **options) as model:
        found = trained(model, cluster.target)
    assert found["count"].tolist() == expected["count"].tolist()
    assert found["frequency"].tolist() == expected["frequency"].tolist()
    np.testing.assert_allclose(found["rows"], expected["rows"], rtol=1e-5)


def _optimizer(name: str) -> Any:
    kinds: dict[str, Callable[[], Any]] = {
        "Adam": lambda: tf.train.AdamOptimizer(0.01),
        "AdamAsync": lambda: tf.train.AdamAsyncOptimizer(0.01),
    }
    return kinds[name]()


def test_parts_are_asked_as_one_variable() -> None:
    with new_graph():
        option = tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2), max_rows=100)
        with tf.variable_scope("deep", partitioner=tf.fixed_size_partitioner(3)):
            variable = tf.get_embedding_variable("emb", 2, key_dtype=tf.int64, ev_option=option)
        with tf.variable_scope("deep", reuse=True):
            assert tf.get_embedding_variable("emb", 2) is variable
        assert [each.op.name for each in variable] == [f"deep/emb/part_{number}" for number in range(3)]
        ids = tf.placeholder(tf.int64, [None])
        sparse = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.stack([ids[0], ids[1], ids[0]]), [3, 2])
        rows = tf.nn.safe_embedding_lookup_sparse(variable, sparse, combiner="sum")
        train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows))
        asked = [
            variable.total_count(),
            variable.get_frequency([[7, -5], [0, 7]]),
            variable.get_version([7, -5]),
            *variable.export(),
            tf.gather(variable, [7, 9]),
        ]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train, {ids: [7, -5]})
            count, frequency, version, keys, values, versions, frequencies, gathered = session.run(asked)
            assert count.tolist() == [1, 2]
            assert frequency.tolist() == [[2, 1], [0, 2]]
            assert version.tolist() == versions.tolist() * 2 == [-1, -1]
            assert (keys.tolist(), frequencies.tolist()) == ([7], [2])
            np.testing.assert_array_equal(values[0], gathered[0])
            assert session.run(rows, {ids: [1, 2]}).shape == (3, 2)
        with pytest.raises(ValueError, match="in 3 parts"):
            tf.square(variable)
        with pytest.raises(ConfigurationError, match="cuts rows"):
            tf.get_embedding_variable("wide", 2, partitioner=tf.fixed_size_partitioner(2, axis=1))


def test_a_column_may_be_in_parts() -> None:
    with new_graph():
        words = tf.feature_column.categorical_column_with_embedding("word", partition_num=2)
        column = tf.feature_column.embedding_column(words, 3)
        layer = tf.feature_column.input_layer({"word": tf.constant([["a", "b"], ["c", ""]])}, [column])
        train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(layer - 1)))
        variables = [each for each in tf.global_variables() if isinstance(each, tf.EmbeddingVariable)]
        assert [each.op.name for each in variables] == [
            f"input_layer/word_embedding/embedding_weights/part_{number}" for number in range(2)
        ]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train)
            assert sum(int(each[0]) for each in session.run([v.total_count() for v in variables])) == 3


@pytest.mark.I1
def test_workers_that_insert_at_once_lose_no_key_and_give_no_row_to_two() -> None:
    """Two of them, with the same new keys in other orders."""
    keys, steps = np.arange(-600, 600), 20
    cluster = fresh_cluster()
    errors: list[BaseException] = []

    def train(session: Any, model: Model, worker: int) -> None:
        draw = np.random.default_rng(worker).permutation(keys).reshape(steps, -1)
        for ids in [*draw, *draw]:
            session.run(model.train, {model.ids: ids})

    def train_too() -> None:
        try:
            with (
                on_servers(cluster, 2, 1, filter_option=tf.CounterFilter(2)) as model,
                tf.Session(cluster.targets[1]) as session,
            ):
                has_built.set()
                may_train.wait(60)
                train(session, model, 1)
        except BaseException as error:  # noqa: BLE001 - told in the main thread
            errors.append(error)

    has_built, may_train = threading.Event(), threading.Event()
    with on_servers(cluster, 2, filter_option=tf.CounterFilter(2)) as model:
        seen = model.variable.get_frequency(keys)
        exported = model.variable.export()
        numbers = [shard.table.all_keys()[1] for shard in model.variable]
        with tf.Session(cluster.target) as session:
            session.run(tf.global_variables_initializer())
            thread = threading.Thread(target=train_too)
            thread.start()
            assert has_built.wait(60)
            may_train.set()
            train(session, model, 0)
            thread.join(120)
            assert not errors
            assert session.run(seen).tolist() == [4] * len(keys)
            found = session.run(exported)
            assert sorted(found[0]) == keys.tolist()
            for rows in session.run(numbers):
                assert sorted(rows) == list(range(1, len(rows) + 1))


# Saved, resumed and served.


@pytest.mark.I2
def test_a_cluster_that_goes_on_is_the_one_that_ended(tmp_path: Path) -> None:
    """One that counts in blocks and evicts. As if all servers had been killed in between."""
    run_dir = tmp_path / "run"
    blocks = tf.CBFFilter(2, max_element_size=500, false_positive_probability=0.01)
    options: dict[str, Any] = {"filter_option": blocks, "evict_option": tf.GlobalStepEvict(4)}
    seen: dict[str, np.ndarray] = {}
    for part in range(2):
        cluster = fresh_cluster()
        with (
            on_servers(cluster, 1, **options) as model,
            monitored(run_dir, master=cluster.target) as session,
        ):
            if seen:
                assert_same(seen, model.ask(session))
            step(session, model, *batches(9, seed=part, keys=KEYS[part * 20 : part * 20 + 60]))
            seen = model.ask(session)
    deltas = manifests(run_dir, Kind.DELTA)
    assert len(deltas) > 6
    assert deltas[-1].tables["emb"].keys_live == seen["count"][0]
    assert sum(delta.tables["emb"].rows_deleted for delta in deltas) > 0


@pytest.mark.I6
def test_a_chief_that_has_lost_the_servers_goes_on_from_the_last_commit(tmp_path: Path) -> None:
    """What it knew of keys that came and went since is of no use any more."""
    options: dict[str, Any] = {"filter_option": tf.CounterFilter(2), "evict_option": tf.GlobalStepEvict(4)}
    cluster, expected = fresh_cluster(), dict[str, np.ndarray]()
    with (
        on_servers(cluster, 2, **options) as model,
        monitored(tmp_path, master=cluster.target, save_incremental_checkpoint_steps=1) as session,
    ):
        for part in range(3):
            step(session, model, *batches(7, seed=part, keys=KEYS[part * 20 : part * 20 + 40]))
            expected = model.ask(session)
            if part < 2:
                cluster.forget()
                assert_same(expected, session.run(model.asked, {model.ids: KEYS}))
    newest = manifests(tmp_path)[-1]
    assert newest.position.run == 3
    assert sum(table.keys_live or 0 for table in newest.tables.values()) == expected["count"][0]
    assert sum(table.rows_deleted for each in manifests(tmp_path) for table in each.tables.values()) > 0
    cluster.forget()
    with on_servers(cluster, 2, **options) as model, monitored(tmp_path, master=cluster.target) as session:
        assert_same(expected, model.ask(session))


def test_another_number_of_parts_is_refused_by_name(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    with on_servers(cluster, 2) as model, monitored(tmp_path, master=cluster.target) as session:
        step(session, model, [1, 2], [3])
    before = sorted(tmp_path.rglob("*"))
    for parts in (1, 3):
        cluster.forget()
        with (
            on_servers(cluster, parts) as model,
            pytest.raises(ModelMismatchError, match=f"emb: {parts} parts? in the model, 2 in the checkpoint"),
            monitored(tmp_path, master=cluster.target),
        ):
            pass
        assert sorted(tmp_path.rglob("*")) == before
    with new_graph():
        model = build(1)
        signature = GraphSignature({"ids": model.ids}, {"rows": model.rows})
        with pytest.raises(ModelMismatchError, match="emb: 1 part in the model, 2 in the checkpoint"):
            export_chain({"serving_default": signature}, tmp_path, tmp_path / "export", ExportOptions())


def test_a_chief_that_was_lost_with_the_workers_stopped_lets_them_go_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    cluster = fresh_cluster()
    with on_servers(cluster, 2) as model, monitored(tmp_path, master=cluster.target) as session:
        step(session, model, [1, 2], [3])
        expected = model.ask(session)
        graph = session.graph
    with tf.Session(cluster.target, graph=graph) as lost:
        lost.run([shard.table.stop_others for shard in model.variable])
    with (
        tf.Session(cluster.targets[1], graph=graph) as worker,
        pytest.raises(tf.errors.DeadlineExceededError),
    ):
        worker.run(model.rows, {model.ids: [1]}, options=tf.RunOptions(timeout_in_ms=300))
    with on_servers(cluster, 2) as model, monitored(tmp_path, master=cluster.target) as session:
        assert_same(expected, model.ask(session))
        step(session, model, [4])


def test_a_step_whose_rows_were_found_before_a_restore_writes_to_none_of_them(tmp_path: Path) -> None:
    """A chief that takes the place of a lost one restores what other workers train."""
    cluster = fresh_cluster()
    is_open, may_end = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    class Slow(tf.train.AdagradOptimizer):
        """Of which a step may last for long between its gradients and its writes."""

        def apply_gradients(self, gradients: Any, *args: Any, **kwargs: Any) -> Any:
            gradients = list(gradients)
            with tf.control_dependencies([each.values for each, _ in gradients if hasattr(each, "values")]):
                gate = tf.py_func(wait, [], tf.int64)
            with tf.control_dependencies([gate]):
                late = [
                    tf.IndexedSlices(tf.identity(each.values), each.indices, each.dense_shape)
                    if hasattr(each, "values")
                    else tf.identity(each)
                    for each, _ in gradients
                ]
            variables = [variable for _, variable in gradients]
            return super().apply_gradients(zip(late, variables, strict=True), *args, **kwargs)

    def wait() -> np.int64:
        is_open.set()
        may_end.wait(60)
        return np.int64(0)

    def train_slowly() -> None:
        options = {"save_incremental_checkpoint_steps": 1, "is_chief": False}
        try:
            with (
                on_servers(cluster, 2, 1, optimizer=Slow(0.1)) as model,
                monitored(tmp_path, master=cluster.targets[1], **options) as session,
            ):
                session.run(model.train, {model.ids: [1, 2, 30, 31]})
        except tf.errors.InvalidArgumentError as error:
            failures.append(error)

    with on_servers(cluster, 2) as model, monitored(tmp_path, master=cluster.target) as session:
        step(session, model, [1, 2], [3])
        thread = threading.Thread(target=train_slowly)
        thread.start()
        assert is_open.wait(60)
        assert model.ask(session)["count"][0] == 5
    with on_servers(cluster, 2) as model, monitored(tmp_path, master=cluster.target) as session:
        expected = model.ask(session)
        may_end.set()
        thread.join(60)
        assert [str(each).count("was restored while a step trained it") > 0 for each in failures] == [True]
        found = model.ask(session)
        for name in ("rows", "count"):
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.I2
def test_a_plain_saver_saves_keys_of_one_moment_while_a_worker_trains(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    has_saved, is_training, errors = threading.Event(), threading.Event(), []

    def train() -> None:
        try:
            with on_servers(cluster, 1, 1) as model, tf.Session(cluster.targets[1]) as session:
                first = 0
                while not has_saved.is_set():
                    session.run(model.train, {model.ids: np.arange(first, first + 50)})
                    is_training.set()
                    first += 50
        except BaseException as error:  # noqa: BLE001 - told in the main thread
            errors.append(error)

    with on_servers(cluster, 1) as model:
        saver = tf.train.Saver(max_to_keep=20)
        with tf.Session(cluster.target) as session:
            session.run(tf.global_variables_initializer())
            thread = threading.Thread(target=train)
            thread.start()
            assert is_training.wait(60)
            paths = [saver.save(session, str(tmp_path / f"{number}.ckpt")) for number in range(20)]
            has_saved.set()
            thread.join(60)
            assert not errors
    with new_graph():
        model = build(1)
        numbers, saver = model.variable.table.all_keys(), tf.train.Saver()
        with tf.Session() as session:
            for path in paths:
                saver.restore(session, path)
                keys, rows = session.run(numbers)
                assert sorted(keys) == list(range(len(keys)))
                assert sorted(rows) == list(range(1, len(keys) + 1))
                assert model.ask(session)["count"][0] == len(keys) > 0
                assert dict(tf.train.list_variables(path))["emb/Adagrad"] == [len(keys) + 1, WIDTH]

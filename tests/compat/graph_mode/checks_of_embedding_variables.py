"""Embedding variables as DeepRec has them: what they count, who gets a row, what is saved, resumed and served."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
from hotdelta.chain.format.position import Position
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_chain
from hotdelta.errors import CommitError, ConfigurationError
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.small_graphs import monitored, new_graph, settle
from tests.loader.step_model import serving, wait_for_position

WIDTH = 4
KEYS = np.concatenate([np.arange(-20, 100), [2**62, -(2**62)]])
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: tf.train.GradientDescentOptimizer(0.1),
    "Adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "Adam": lambda: tf.train.AdamOptimizer(0.01),
    "AdamAsync": lambda: tf.train.AdamAsyncOptimizer(0.01),
    "AdagradDecay": lambda: tf.train.AdagradDecayOptimizer(0.1, tf.train.get_or_create_global_step()),
    "Ftrl": lambda: tf.train.FtrlOptimizer(0.1),
    "Momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "RMSProp": lambda: tf.train.RMSPropOptimizer(0.01),
}


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


def build(option: Any = None, optimizer: str = "Adagrad", *, initializer: Any = None) -> Model:
    variable = tf.get_embedding_variable(
        "emb",
        WIDTH,
        initializer=initializer or tf.truncated_normal_initializer(seed=3),
        ev_option=option or tf.EmbeddingVariableOption(),
    )
    assert isinstance(variable, tf.EmbeddingVariable)
    ids = tf.placeholder(tf.int64, [None])
    rows = tf.nn.embedding_lookup(variable, ids)
    weights = tf.get_variable("weights", [WIDTH, 1], initializer=tf.ones_initializer())
    prediction = tf.matmul(rows, weights)
    step = tf.train.get_or_create_global_step()
    train = OPTIMIZERS[optimizer]().minimize(tf.reduce_sum(tf.square(prediction - 1)), global_step=step)
    asked = {"rows": rows, "prediction": prediction, "count": variable.total_count()}
    if variable.table.settings.counts_uses:
        asked["frequency"] = variable.get_frequency(ids)
    return Model(variable, ids, rows, prediction, train, asked)


def step(session: Any, model: Model, *fed: Any) -> None:
    for ids in fed:
        session.run(model.train, {model.ids: ids})
        settle()


@contextmanager
def session_of(model: Model) -> Iterator[Any]:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        yield session


def value_of(session: Any, name: str) -> np.ndarray:
    (found,) = (each for each in tf.global_variables() if each.op.name == name)
    value: np.ndarray = session.run(found.value())
    return value


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value.view(np.uint8), other[name].view(np.uint8), err_msg=name)


def batches(count: int, *, seed: int = 0, keys: np.ndarray = KEYS) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.choice(keys, 24) for _ in range(count)]


# Who gets a row, and what is counted.


def test_a_key_begins_with_row_key_mod_rows_of_the_matrix_that_its_initializer_makes() -> None:
    option = tf.EmbeddingVariableOption(init_option=tf.InitializerOption(default_value_dim=7))
    with new_graph():
        model = build(option)
        with session_of(model) as session:
            matrix = value_of(session, "emb_first_rows")
            assert matrix.shape == (7, WIDTH)
            np.testing.assert_array_equal(model.ask(session)["rows"], matrix[KEYS % 7])
            assert model.ask(session)["count"].tolist() == [0, WIDTH]


def test_a_look_up_gives_no_key_a_row_and_training_does() -> None:
    with new_graph():
        model = build()
        with session_of(model) as session:
            model.ask(session)
            assert model.ask(session)["count"].tolist() == [0, WIDTH]
            step(session, model, [5, 7, 5])
            assert model.ask(session)["count"].tolist() == [2, WIDTH]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_of_keys_are_trained_as_rows_of_a_table(optimizer: str) -> None:
    """Bit for bit those of tf.get_variable, where the optimizer writes the rows of a batch only."""
    ids = [[1, 3, 3], [0, 2], [1, 1, 1, 4], [3, 2, 0]]
    with new_graph():
        model = build(optimizer=optimizer)
        with session_of(model) as session:
            first = value_of(session, "emb_first_rows")[:5]
            step(session, model, *ids)
            (found,) = session.run([model.rows], {model.ids: np.arange(5)})
    with new_graph():
        table = tf.get_variable("emb", initializer=tf.constant(first), use_resource=True)
        fed = tf.placeholder(tf.int64, [None])
        weights = tf.get_variable("weights", [WIDTH, 1], initializer=tf.ones_initializer())
        loss = tf.reduce_sum(tf.square(tf.matmul(tf.nn.embedding_lookup(table, fed), weights) - 1))
        counter = tf.train.get_or_create_global_step()
        made = tf.train.AdamOptimizer(0.01) if optimizer == "Adam" else OPTIMIZERS[optimizer]()
        train = made.minimize(loss, global_step=counter)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for each in ids:
                session.run(train, {fed: each})
            expected = session.run(table)
    if optimizer == "Adam":
        # tf.train's moves all rows in every step, and DeepRec's only those of the batch.
        assert not np.array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


def test_adam_moves_the_rows_of_a_batch_by_its_rule() -> None:
    rate, beta1, beta2, epsilon = 0.01, 0.9, 0.999, 1e-8
    with new_graph():
        model = build(optimizer="Adam", initializer=tf.ones_initializer())
        with session_of(model) as session:
            step(session, model, [1], [2], [1])
            (found,) = session.run([model.rows], {model.ids: [1, 2]})
            weights = value_of(session, "weights")
    rows = {1: np.ones(WIDTH), 2: np.ones(WIDTH)}
    m = {key: np.zeros(WIDTH) for key in rows}
    v = {key: np.zeros(WIDTH) for key in rows}
    w, wm, wv = np.ones(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    for number, key in enumerate([1, 2, 1], 1):
        alpha = rate * np.sqrt(1 - beta2**number) / (1 - beta1**number)
        gradient = 2 * (rows[key] @ w - 1)
        row_gradient, w_gradient = gradient * w, gradient * rows[key]
        m[key] = beta1 * m[key] + (1 - beta1) * row_gradient
        v[key] = beta2 * v[key] + (1 - beta2) * row_gradient**2
        rows[key] = rows[key] - alpha * m[key] / (np.sqrt(v[key]) + epsilon)
        wm = beta1 * wm + (1 - beta1) * w_gradient
        wv = beta2 * wv + (1 - beta2) * w_gradient**2
        w = w - alpha * wm / (np.sqrt(wv) + epsilon)
    np.testing.assert_allclose(found, np.stack([rows[1], rows[2]]), rtol=1e-5)
    np.testing.assert_allclose(weights[:, 0], w, rtol=1e-5)


@pytest.mark.parametrize(
    "filter_option",
    [tf.CounterFilter(3), tf.CBFFilter(3, max_element_size=1000, false_positive_probability=0.01)],
    ids=["counted", "in a filter"],
)
def test_a_filter_counts_occurrences_and_admits_at_its_number(filter_option: Any) -> None:
    option = tf.EmbeddingVariableOption(
        filter_option=filter_option, init_option=tf.InitializerOption(default_value_no_permission=0.2)
    )
    with new_graph():
        model = build(option)
        frequency = model.variable.get_frequency([1, 2, 3, 4])
        version = model.variable.get_version([1, 4])
        keys = model.variable.export()[0]
        with session_of(model) as session:
            step(session, model, [1, 1, 1, 2, 2, 3])
            assert session.run(keys).tolist() == [1]
            assert session.run(frequency).tolist() == [3, 2, 1, 0]
            step(session, model, [1, 1, 1, 2, 2, 3])
            assert sorted(session.run(keys)) == [1, 2]
            assert session.run(frequency).tolist() == [6, 4, 2, 0]
            (rows,) = session.run([model.rows], {model.ids: [3, 4]})
            assert (rows == np.float32(0.2)).all()
            assert session.run(version).tolist() == [-1, -1]
            assert session.run(model.asked["count"], {model.ids: []}).tolist() == [2, WIDTH]


def test_keys_go_that_were_not_trained_for_more_than_so_many_steps(tmp_path: Path) -> None:
    option = tf.EmbeddingVariableOption(evict_option=tf.GlobalStepEvict(2))
    with new_graph():
        model = build(option)
        keys, _, versions, _ = model.variable.export()
        with monitored(tmp_path / "run", save_incremental_checkpoint_steps=1) as session:
            step(session, model, [1, 2, 3], [2, 3], [2, 3])
            assert sorted(session._tf_sess().run(keys)) == [1, 2, 3]
            step(session, model, [2, 3], [2, 3])
            found = dict(zip(*session._tf_sess().run([keys, versions]), strict=True))
            assert set(found) == {2, 3}
    newest = manifests(tmp_path / "run", Kind.DELTA)
    assert sum(manifest.tables["emb"].rows_deleted for manifest in newest) == 1
    assert newest[-1].tables["emb"].keys_live == 2


def test_keys_go_whose_row_has_too_small_a_half_square(tmp_path: Path) -> None:
    """0.5 * sum(w^2), as DeepRec computes it: key 1 has 0.32 of it, key 2 has 2."""
    option = tf.EmbeddingVariableOption(evict_option=tf.L2WeightEvict(0.9))
    with new_graph():
        variable = tf.get_embedding_variable("emb", 4, initializer=tf.ones_initializer(), ev_option=option)
        ids, goal = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None])
        rows = tf.nn.embedding_lookup(variable, ids)
        loss = tf.reduce_sum(rows * goal[:, tf.newaxis])
        counter = tf.train.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=counter)
        keys = variable.export()[0]
        with monitored(tmp_path / "run", save_incremental_checkpoint_steps=1) as session:
            for _ in range(4):
                session.run(train, {ids: [1, 2], goal: [0.0, 0.0]})
                settle()
            session.run(train, {ids: [1, 2], goal: [0.6, 0.0]})
            settle()
            session.run(train, {ids: [2], goal: [0.0]})
            settle()
            session.run(train, {ids: [2], goal: [0.0]})
            settle()
            assert session._tf_sess().run(keys).tolist() == [2]


def test_both_ways_to_go_at_once_are_refused() -> None:
    both: Any = [tf.GlobalStepEvict(2), tf.L2WeightEvict(0.9)]
    with pytest.raises(ConfigurationError, match="or neither"):
        tf.EmbeddingVariableOption(evict_option=both)


def test_texts_are_keys_too() -> None:
    with new_graph():
        variable = tf.get_embedding_variable("emb", 2, key_dtype=tf.string)
        words = tf.placeholder(tf.string, [None])
        rows = tf.nn.embedding_lookup(variable, words)
        train = tf.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(rows))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            before = session.run(rows, {words: ["a", "b", "c"]})
            session.run(train, {words: ["a", "b", "a"]})
            after = session.run(rows, {words: ["a", "b", "c"]})
    np.testing.assert_allclose(before - after, np.array([[1, 1], [0.5, 0.5], [0, 0]]), rtol=1e-6)


# Scopes, and what is refused.


def test_scopes_share_and_refuse_as_tf_get_variable() -> None:
    with new_graph():
        with tf.variable_scope("deep", reuse=tf.AUTO_REUSE):
            one = tf.get_embedding_variable("emb", 4)
            assert tf.get_embedding_variable("emb", 4) is one
            with pytest.raises(ValueError, match="share"):
                tf.get_embedding_variable("emb", 8)
        assert isinstance(one, tf.EmbeddingVariable)
        assert one.op.name == "deep/emb"
        # A scope that is entered again has another scope of operations.
        option = tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2))
        with tf.variable_scope("deep"):
            tf.get_embedding_variable("more", 4, ev_option=option)
        found = {each.op.name for each in tf.global_variables()}
        emb = {f"deep/emb{suffix}" for suffix in ("", "_counts", "_first_rows", "_index")}
        more = {
            f"deep/more{suffix}" for suffix in ("", "_counts", "_first_rows", "_index", "_usage", "_waiting")
        }
        assert found == emb | more | {"deep/more_waiting_counts"}
        with tf.variable_scope("deep"), pytest.raises(ValueError, match="already exists"):
            tf.get_embedding_variable("emb", 4)
        with tf.variable_scope("deep", reuse=True), pytest.raises(ValueError, match="does not exist"):
            tf.get_embedding_variable("other", 4)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: tf.get_embedding_variable("emb", 4, constraint=lambda rows: rows), "constraint"),
        (lambda: tf.get_embedding_variable("emb", 4, key_dtype=tf.float32), "key_dtype"),
        (lambda: tf.get_embedding_variable("emb", 0), "embedding_dim"),
        (lambda: tf.StorageOption(storage_path="/ssd"), "memory"),
        (lambda: tf.EmbeddingVariableOption(ckpt="somewhere"), "CheckpointOption"),
        (lambda: tf.CBFFilter(3), "CBFFilter"),
    ],
)
def test_what_is_not_here_is_refused_by_name(make: Callable[[], Any], said: str) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match=said):
        make()


# Look-ups of many ids.


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_sparse_look_ups_are_those_of_tensorflow(combiner: str, is_weighted: bool) -> None:
    indices = [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2]]
    keys, weights = [3, 1, 3, 3, 2], [0.5, 2.0, 1.0, 0.25, 4.0]
    with new_graph():
        variable = tf.get_embedding_variable("emb", 3, initializer=tf.truncated_normal_initializer(seed=1))
        sparse = tf.SparseTensor(indices, tf.constant(keys, tf.int64), [4, 3])
        given = tf.SparseTensor(indices, weights, [4, 3]) if is_weighted else None
        table = tf.stack([variable.look_up(np.arange(4))[number] for number in range(4)])
        safe = tf.nn.safe_embedding_lookup_sparse(variable, sparse, given, combiner)
        expected = tf.compat.v1.nn.safe_embedding_lookup_sparse([table], sparse, given, combiner)
        plain = tf.nn.embedding_lookup_sparse(variable, sparse, given, combiner=combiner)
        gathered = tf.gather(variable, [1, 3])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            got, wanted, prefix, rows, all_rows = session.run([safe, expected, plain, gathered, table])
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert got.shape == (4, 3)
    np.testing.assert_allclose(prefix, wanted[:3], rtol=1e-6)
    np.testing.assert_array_equal(rows, all_rows[[1, 3]])


def test_a_sparse_look_up_counts_occurrences_and_invents_no_key() -> None:
    option = tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2))
    with new_graph():
        variable = tf.get_embedding_variable("emb", 3, ev_option=option)
        sparse = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([7, 7, -5], tf.int64), [4, 2])
        loss = tf.reduce_sum(tf.nn.safe_embedding_lookup_sparse(variable, sparse, None, "sum"))
        train = tf.train.AdagradOptimizer(0.1).minimize(loss)
        seen = variable.get_frequency([7, -5, 0])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train)
            assert session.run(seen).tolist() == [2, 1, 0]


def test_columns_of_keys_are_looked_up_by_input_layer() -> None:
    with new_graph():
        words = tf.feature_column.categorical_column_with_embedding("word", dtype=tf.string)
        more = tf.feature_column.categorical_column_with_embedding("more", dtype=tf.string)
        number = tf.feature_column.categorical_column_with_embedding("number", dtype=tf.int64)
        columns = [
            *tf.feature_column.shared_embedding_columns([words, more], 3),
            tf.feature_column.embedding_column(number, 2, combiner="sum"),
        ]
        features = {
            "word": tf.constant([["a", "b"], ["c", ""]]),
            "more": tf.constant([["b"], ["a"]]),
            "number": tf.constant([[1, 2], [3, -1]], tf.int64),
        }
        layer = tf.feature_column.input_layer(features, columns)
        train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(layer - 1)))
        variables = [each for each in tf.global_variables() if isinstance(each, tf.EmbeddingVariable)]
        assert sorted(each.op.name for each in variables) == [
            "input_layer/more_word_shared_embedding/embedding_weights",
            "input_layer/number_embedding/embedding_weights",
        ]
        counts = [each.total_count() for each in sorted(variables, key=lambda each: each.op.name)]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert session.run(layer).shape == (2, 8)
            session.run(train)
            assert [int(count[0]) for count in session.run(counts)] == [3, 3]


def test_a_key_that_two_look_ups_of_a_step_admit_together_is_trained_by_both() -> None:
    option = tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2))
    keys = np.arange(300)
    with new_graph():
        variable = tf.get_embedding_variable("emb", 1, initializer=tf.zeros_initializer(), ev_option=option)
        ids = tf.placeholder(tf.int64, [None])
        one, other = tf.nn.embedding_lookup(variable, ids), tf.nn.embedding_lookup(variable, ids[::-1])
        loss = tf.reduce_sum(one) + 3 * tf.reduce_sum(other)
        train = tf.train.AdagradOptimizer(1.0).minimize(loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for part in keys.reshape(30, 10):
                session.run(train, {ids: part})
            assert session.run(variable.get_frequency(keys)).tolist() == [2] * 300
            expected = np.full((300, 1), -4 / np.sqrt(16.1), np.float32)
            np.testing.assert_allclose(session.run(one, {ids: keys}), expected, rtol=1e-6)


# Saved, resumed and served.

OPTIONS: dict[str, Callable[[], Any]] = {
    "plain": tf.EmbeddingVariableOption,
    "filtered": lambda: tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2)),
    "filtered in blocks": lambda: tf.EmbeddingVariableOption(
        filter_option=tf.CBFFilter(2, max_element_size=500, false_positive_probability=0.01)
    ),
    "all of it": lambda: tf.EmbeddingVariableOption(
        filter_option=tf.CounterFilter(2), evict_option=tf.GlobalStepEvict(6)
    ),
}


@pytest.mark.I2
@pytest.mark.parametrize(
    "option, optimizer",
    [("plain", "Adagrad"), ("filtered in blocks", "Adam"), ("all of it", "AdamAsync")],
)
def test_a_session_that_goes_on_is_the_one_that_ended(tmp_path: Path, option: str, optimizer: str) -> None:
    run_dir = tmp_path / "run"
    seen: dict[str, np.ndarray] = {}
    for part in range(3):
        with new_graph():
            model = build(OPTIONS[option](), optimizer)
            with monitored(run_dir) as session:
                if seen:
                    assert_same(seen, model.ask(session))
                step(session, model, *batches(7, seed=part, keys=KEYS[part * 20 : part * 20 + 60]))
                seen = model.ask(session)
    deltas = manifests(run_dir, Kind.DELTA)
    assert len(deltas) > 6
    assert deltas[-1].tables["emb"].keys_live == seen["count"][0]


@pytest.mark.I2
def test_a_trainer_that_is_killed_goes_on_from_its_newest_delta(tmp_path: Path) -> None:
    """kill -9 in a process of its own; another run of the same batches, which nobody kills, has the same bits."""
    run_dir, straight_dir = tmp_path / "run", tmp_path / "straight"
    program = f"from {__name__} import train_until_killed; train_until_killed({str(run_dir)!r})"
    child = subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    assert child.returncode == -signal.SIGKILL
    assert manifests(run_dir, Kind.DELTA)[-1].step == 8
    ends = []
    for directory, left in ((straight_dir, batches(12)), (run_dir, batches(12)[8:])):
        with new_graph():
            model = build(OPTIONS["filtered"](), "AdamAsync")
            with monitored(directory) as session:
                step(session, model, *left)
                ends.append(model.ask(session))
    assert_same(*ends)
    assert manifests(run_dir, Kind.DELTA)[-1].position.run == 2


def train_until_killed(run_dir: str) -> None:
    with new_graph():
        model = build(OPTIONS["filtered"](), "AdamAsync")
        with monitored(Path(run_dir)) as session:
            step(session, model, *batches(8))
            os.kill(os.getpid(), signal.SIGKILL)


def _export(run_dir: Path, export_dir: Path, option: str) -> Path:
    with new_graph():
        model = build(OPTIONS[option]())
        signature = GraphSignature({"ids": model.ids}, {"rows": model.rows, "prediction": model.prediction})
        return export_chain(
            {"serving_default": signature}, run_dir, export_dir, ExportOptions(save_incr_model=True)
        )


@pytest.mark.I1
@pytest.mark.parametrize("option", ["plain", "filtered in blocks", "all of it"])
def test_a_server_follows_keys_that_come_and_go_with_the_answers_of_training(
    tmp_path: Path, option: str
) -> None:
    run_dir = tmp_path / "run"
    with new_graph():
        model = build(OPTIONS[option]())
        with monitored(run_dir) as session:
            step(session, model, *batches(4))
            _export(run_dir, tmp_path / "export", option)
            with serving(tmp_path) as loader:
                for seed in range(4):
                    step(session, model, *batches(2, seed=seed, keys=KEYS[seed * 20 : seed * 20 + 50]))
                    newest: Position = manifests(run_dir, Kind.DELTA)[-1].position
                    wait_for_position(loader, newest)
                    answer, version = loader.predict("serving_default", {"ids": KEYS})
                    assert version.position == newest
                    expected = model.ask(session)
                    for name in ("rows", "prediction"):
                        np.testing.assert_array_equal(
                            answer[name].view(np.uint8), expected[name].view(np.uint8)
                        )


def test_a_plain_saver_saves_the_rows_in_use_and_restores_them(tmp_path: Path) -> None:
    path = str(tmp_path / "model.ckpt")
    with new_graph():
        model = build(OPTIONS["all of it"]())
        saver = tf.train.Saver()
        with session_of(model) as session:
            step(session, model, *batches(6))
            expected = model.ask(session)
            saver.save(session, path)
            step(session, model, *batches(2, seed=4))
            saver.restore(session, path)
            assert_same(expected, model.ask(session))
    saved = dict(tf.train.list_variables(path))
    assert saved["emb"][0] == expected["count"][0] + 1
    with new_graph():
        model = build(OPTIONS["all of it"]())
        with tf.Session() as session:
            tf.train.Saver().restore(session, path)
            assert_same(expected, model.ask(session))


def test_saves_by_hand_are_deltas_and_each_of_them_can_be_restored(tmp_path: Path) -> None:
    path, seen = str(tmp_path / "run" / "model.ckpt"), {}
    from tensorflow.python.training.incremental_saver import IncrementalSaver

    with new_graph():
        model = build(OPTIONS["all of it"]())
        saver = IncrementalSaver()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            saver.save(session, path)
            for seed in range(3):
                step(session, model, *batches(2, seed=seed))
                seen[saver.incremental_save(session, path)] = model.ask(session)
    assert [Path(each).name for each in seen] == [f"incremental_model.ckpt-{number}" for number in (2, 4, 6)]
    for delta, expected in seen.items():
        with new_graph():
            model = build(OPTIONS["all of it"]())
            with tf.Session() as session:
                IncrementalSaver().restore(session, delta)
                assert_same(expected, model.ask(session))


def test_an_estimator_trains_evaluates_and_exports_them(tmp_path: Path) -> None:
    words = np.array([[f"w{number}"] for number in np.random.default_rng(0).integers(0, 40, 320)])
    labels = (np.char.str_len(words) == 2).astype(np.float32)

    def model(features: Any, labels: Any, mode: str) -> Any:
        option = tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2), max_rows=1000)
        column = tf.feature_column.categorical_column_with_embedding("word", ev_option=option)
        layer = tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(column, WIDTH)])
        logits = tf.layers.dense(layer, 1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"p": tf.sigmoid(logits)})
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(0.5).minimize(loss, global_step=step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def read() -> Any:
        return tf.data.Dataset.from_tensor_slices(({"word": words}, labels)).batch(16)

    run_dir = tmp_path / "run"
    config = tf.estimator.RunConfig(
        model_dir=str(run_dir), save_checkpoints_steps=20, save_incremental_checkpoint_steps=5
    )
    estimator = tf.estimator.Estimator(model, config=config)
    estimator.train(read)
    first = estimator.evaluate(read)["loss"]
    estimator.train(read)
    assert estimator.evaluate(read)["loss"] < first
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn(
        {"word": tf.placeholder(tf.string, [None, 1])}
    )
    estimator.export_saved_model(str(tmp_path / "export"), receiver, save_incr_model=True)
    predicted = [each["p"] for each in estimator.predict(read)]
    with serving(tmp_path) as loader:
        wait_for_position(loader, manifests(run_dir)[-1].position)
        found, _ = loader.predict("serving_default", {"word": words})
    np.testing.assert_allclose(found["p"], np.stack(predicted), rtol=1e-6)


# What would mix up rows and keys.


def test_another_session_of_the_graph_does_not_take_the_table_over(tmp_path: Path) -> None:
    with new_graph():
        model = build()
        with monitored(tmp_path / "run") as session:
            step(session, model, [1, 2], [3])
            expected = model.ask(session)
            reader = tf.train.Saver(incremental_save_restore=True)
            newest = tf.train.latest_checkpoint(str(tmp_path / "run"))
            with (
                tf.Session(graph=session.graph) as other,
                pytest.raises(ConfigurationError, match="another Session"),
            ):
                reader.restore(other, newest)
            assert_same(expected, model.ask(session))
            step(session, model, [4], [5])
    assert manifests(tmp_path / "run", Kind.DELTA)[-1].tables["emb"].keys_live == 5


def test_a_table_that_begins_anew_in_the_middle_of_a_chain_is_not_committed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with new_graph():
        model = build(OPTIONS["all of it"]())
        begin = tf.global_variables_initializer()
        seen = []

        def begin_anew_while_training() -> None:
            with monitored(run_dir) as session:
                step(session, model, *batches(6))
                seen.append(model.ask(session))
                session._tf_sess().run(begin)
                step(session, model, *batches(4, seed=3))

        with pytest.raises(CommitError, match="initialized"):
            begin_anew_while_training()
    with new_graph():
        model = build(OPTIONS["all of it"]())
        with monitored(run_dir) as session:
            assert_same(seen[0], model.ask(session))


def test_a_second_thread_that_trains_is_refused(tmp_path: Path) -> None:
    with new_graph():
        model = build()
        is_open, may_end = threading.Event(), threading.Event()

        def wait(ids: np.ndarray) -> np.ndarray:
            is_open.set()
            may_end.wait(20)
            return ids

        slow = tf.group(model.train, tf.py_func(wait, [model.ids], tf.int64))
        with monitored(tmp_path / "run") as session:
            step(session, model, [1])
            thread = threading.Thread(target=lambda: session.run(slow, {model.ids: [2]}))
            thread.start()
            assert is_open.wait(20)
            try:
                with pytest.raises(ConfigurationError, match="several threads"):
                    session.run(model.train, {model.ids: [3]})
            finally:
                may_end.set()
                thread.join(20)


def test_a_saver_of_trainable_variables_brings_the_keys_along(tmp_path: Path) -> None:
    path = str(tmp_path / "model.ckpt")
    with new_graph():
        model = build()
        saver = tf.train.Saver(tf.trainable_variables())
        with session_of(model) as session:
            step(session, model, [1, 2], [2, 7])
            expected = model.ask(session)
            saver.save(session, path)
            step(session, model, [50])
            saver.restore(session, path)
            assert_same(expected, model.ask(session))
    with new_graph():
        model = build()
        with session_of(model) as session:
            tf.train.Saver(tf.trainable_variables()).restore(session, path)
            assert_same(expected, model.ask(session))


@pytest.mark.parametrize(
    "use",
    [
        lambda variable: tf.gather_nd(variable, [[1]]),
        lambda variable: tf.scatter_update(variable, [1], tf.ones([1, WIDTH])),
        tf.nn.l2_loss,
        lambda variable: variable.assign(variable),
        tf.identity,
    ],
    ids=["gather_nd", "scatter_update", "l2_loss", "assign", "identity"],
)
def test_nobody_reads_or_writes_rows_by_their_number(use: Callable[[Any], Any]) -> None:
    with new_graph():
        model = build()
        # TensorFlow puts it into a ValueError of its own where it converts.
        with pytest.raises(ValueError, match="look its rows up by keys"):
            use(model.variable)


def test_a_look_up_in_a_branch_is_trained(tmp_path: Path) -> None:
    with new_graph():
        variable = tf.get_embedding_variable("emb", 2, initializer=tf.zeros_initializer())
        ids, is_on = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.bool, [])
        rows = tf.cond(
            is_on, lambda: tf.nn.embedding_lookup(variable, ids), lambda: tf.zeros([tf.size(ids), 2])
        )
        step_counter = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(1.0).minimize(tf.reduce_sum(rows), global_step=step_counter)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train, {ids: [5], is_on: False})
            assert session.run(variable.total_count()).tolist() == [0, 2]
            session.run(train, {ids: [5], is_on: True})
            assert session.run(variable.total_count()).tolist() == [1, 2]
            assert (session.run(rows, {ids: [5], is_on: True}) < 0).all()

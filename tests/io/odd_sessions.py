"""Sessions that hooks watch, graphs that record, and variables that only TF1 has. Fails by assertion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
import hotdelta.io as hio
from hotdelta.chain.history.scan import Scanner
from hotdelta.compat.v1.graph.saved_variables import find_saved_variables
from hotdelta.compat.v1.recording.layout import find_layout
from hotdelta.compat.v1.recording.training_graph import training_graph_of
from hotdelta.errors import ConfigurationError
from loader import Loader, LoaderSettings

ROWS = 8


class Recorded:
    """Three tables, the first in parts, and Adagrad; the default graph of its block."""

    def __init__(self, *, parts: int = 1, value: float = 0.0) -> None:
        partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
        constant = tf.constant_initializer(value)
        self.ids = tf.placeholder(tf.int64, [None], name="ids")
        self.tables = [
            tf.get_variable(f"table_{number}", [ROWS, 2], initializer=constant, partitioner=partitioner)
            for number in range(3)
        ]
        rows = [tf.nn.embedding_lookup(table, self.ids) for table in self.tables]
        loss = tf.reduce_sum(tf.add_n(rows))
        step = tf.train.get_or_create_global_step()
        self.train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)

    def train_on(self, session: Any, *ids: int) -> None:
        session.run(self.train, {self.ids: ids})


def monitored(directory: Path, **options: Any) -> Any:
    options.setdefault("save_incremental_checkpoint_steps", 1000)
    return tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(directory), save_checkpoint_steps=1000, log_step_count_steps=None, **options
    )


class CountedRuns(tf.train.SessionRunHook):
    def __init__(self) -> None:
        self.runs = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.runs += 1


def no_hook_runs_in_the_middle_of_a_load(directory: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        Recorded(value=7.0)
        session.run(tf.global_variables_initializer())
        hio.save_params(session, directory / "sevens")
    hook = CountedRuns()
    with tf.Graph().as_default():
        model = Recorded()
        with monitored(directory / "run", hooks=[hook]) as session:
            model.train_on(session, 1)
            hio.load_params(session, directory / "sevens")
            hio.save_persistables(session, directory / "saved")
            hio.save_inference_model(directory / "inference", "ids", "AddN", session)
            assert hook.runs == 1
            flags = [part for table in _recording(session).tables for part in table.flags or ()]
            touched = session._tf_sess().run([part.touched_ids for part in flags])
            assert [len(ids) for ids in touched] == [ROWS] * len(flags)
            assert len(flags) == 3
        with pytest.raises(ConfigurationError, match="the MonitoredSession has ended"):
            hio.save_params(session, directory / "saved")


def _recording(session: Any) -> Any:
    return training_graph_of(session.graph)


def what_hooks_have_stopped_can_still_be_saved(directory: Path) -> None:
    with tf.Graph().as_default():
        model = Recorded()
        with monitored(directory / "run", hooks=[tf.train.StopAtStepHook(last_step=1)]) as session:
            while not session.should_stop():
                model.train_on(session, 1)
            hio.save_persistables(session, directory / "saved")


def a_graph_that_records_has_the_layout_of_one_that_does_not(directory: Path) -> None:
    with tf.Graph().as_default():
        model = Recorded(parts=2)
        with monitored(directory / "run") as session:
            model.train_on(session, 1, 2)
            hio.save_persistables(session, directory / "saved")
            hio.load_persistables(session, directory / "saved")
        recorded_schema = _schema()
    with tf.Graph().as_default(), tf.Session() as session:
        Recorded(parts=2)
        layouts = {info.key: info.layout for info in hio.describe(session)}
        assert layouts["table_0"] == layouts["table_0/Adagrad"] == "mod in parts of 4, 4 rows"
        for name in ("saved", "run"):
            hio.load_persistables(session, directory / name)
        assert _schema() == recorded_schema


def _schema() -> str:
    """By it an export of the graph knows the deltas that it can take."""
    return find_layout(find_saved_variables(tf.global_variables())).variables.schema.digest


def what_another_checkpoint_initializes_is_loaded(directory: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        Recorded(parts=2, value=7.0)
        session.run(tf.global_variables_initializer())
        hio.save_persistables(session, directory)
        path = tf.train.Saver().save(session, str(directory / "stock"))
    for use_resource in (False, True):
        with (
            tf.Graph().as_default(),
            tf.variable_scope("", use_resource=use_resource),
            tf.Session() as session,
        ):
            model = Recorded(parts=2)
            tf.train.init_from_checkpoint(path, {"/": "/"})
            hio.load_persistables(session, directory)
            np.testing.assert_array_equal(
                session.run(tf.convert_to_tensor(model.tables[2])), np.full([ROWS, 2], 7.0)
            )


def what_cannot_be_saved_is_only_described(directory: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        Recorded()
        tf.get_variable("word", initializer="hello", trainable=False)
        local = [tf.GraphKeys.LOCAL_VARIABLES]
        tf.get_variable("path", initializer="here", trainable=False, collections=local)
        tf.add_to_collection(local[0], tf.train.get_global_step())
        tf.Variable(np.zeros([0, 3]), collections=local, trainable=False, validate_shape=False, name="any")
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        described = {info.key: info for info in hio.describe(session)}
        for key in ("word", "path"):
            assert (described[key].variable_class, described[key].dtype) == ("temporary", "string")
        assert "any" not in described
        assert described["global_step"].variable_class == "persistable"
        hio.save_persistables(session, directory / "saved")
        hio.load_persistables(session, directory / "saved")
        hio.save_inference_model(directory / "inference", "ids", "AddN", session)
        with pytest.raises(ConfigurationError, match="'word' is temporary"):
            hio.save_vars(session, directory / "word", ["word"])


def what_cannot_be_assigned_is_saved_and_described_and_refused_before_anything_is_loaded(
    directory: Path,
) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        model = Recorded(value=7.0)
        session.run(tf.global_variables_initializer())
        model.tables[2]._initializer_op = tf.no_op("nothing")
        assert "table_2" in {info.key for info in hio.describe(session)}
        hio.save_persistables(session, directory)
        model.train_on(session, 1)
        trained = session.run(model.tables[0])
        with pytest.raises(ConfigurationError, match="initializer of 'table_2' is 'nothing'"):
            hio.load_persistables(session, directory)
        np.testing.assert_array_equal(session.run(model.tables[0]), trained)
        hio.load_vars(session, directory, ["table_0"])
        np.testing.assert_array_equal(session.run(model.tables[0]), np.full([ROWS, 2], 7.0))


class SameScope:
    """A table `user`, and layers in the scope `user`, of whose variables some have as many rows."""

    def __init__(self) -> None:
        table = tf.get_variable("user", [ROWS, 4], partitioner=tf.fixed_size_partitioner(2))
        self.ids = tf.placeholder(tf.int64, [None], name="ids")
        rows = tf.nn.embedding_lookup(table, self.ids)
        is_training = tf.placeholder_with_default(True, [], name="is_training")
        with tf.variable_scope("user"):
            hidden = tf.layers.dense(rows, ROWS, name="dense")
            normal = tf.layers.batch_normalization(hidden, training=is_training, name="bn")
        self.score = tf.reduce_sum(normal, 1, name="score")
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            self.train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(tf.square(self.score - 1.0)))


def variables_in_a_scope_that_is_named_like_a_table_are_not_its_slots(directory: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        model = SameScope()
        session.run(tf.global_variables_initializer())
        session.run(model.train, {model.ids: [1, 2]})
        wanted = session.run(model.score, {model.ids: [1, 2], "is_training:0": False})
        hio.save_persistables(session, directory / "saved")
        hio.load_persistables(session, directory / "saved")
        hio.save_inference_model(directory / "inference", ["ids", "is_training"], model.score, session)
    program, _, _ = hio.load_inference_model(directory / "inference")
    np.testing.assert_allclose(program(ids=[1, 2], is_training=False)["score"], wanted, rtol=1e-6)


def inputs_and_targets_are_tensors_or_their_names(directory: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        model = Recorded()
        session.run(tf.global_variables_initializer())
        scores, places = tf.nn.top_k(tf.reduce_sum(model.tables[0], 1), name="best")
        for feed, target in ((model.ids, "AddN"), ("ids:0", "AddN:0")):
            hio.save_inference_model(directory, [feed], target, session)
            assert hio.load_inference_model(directory)[1:] == (("ids",), ("AddN",))
        with tf.control_dependencies([model.train]):
            after_training = tf.identity(tf.reduce_sum(scores), name="after_training")
        for feeds, targets, message in (
            ([], [model.train], f"'{model.train.name}' is an operation, which is neither a tensor"),
            ([], [after_training], "'after_training:0' waits for .*writes to variable"),
            ([3], ["AddN"], "3 is neither a tensor"),
            ([], [scores, places], "would have the same name"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                hio.save_inference_model(directory / "refused", feeds, targets, session)
    assert not (directory / "refused").exists()


def a_part_follows_the_chain_of_the_whole_graph(directory: Path) -> None:
    with tf.Graph().as_default():
        model = Recorded(parts=3)
        first = tf.identity(tf.nn.embedding_lookup(model.tables[0], model.ids), name="first/Rows")
        with monitored(directory / "run", save_incremental_checkpoint_steps=1) as session:
            model.train_on(session, 1)
            hio.save_inference_model(directory / "export", "ids", first, session, save_incr_model=True)
            model.train_on(session, 2, 3)
            expected = session._tf_sess().run(first, {model.ids: np.arange(ROWS)})
    loader = Loader(LoaderSettings(export_dir=directory / "export", checkpoint_dir=directory / "run"))
    loader.start()
    try:
        assert loader.wait_for(Scanner(directory / "run").scan().manifests[-1].position, 60), loader.status()
        answer, _ = loader.predict("serving_default", {"ids": np.arange(ROWS)})
        assert [table.key for table in loader.status().tables] == ["table_0"]
    finally:
        loader.stop()
    assert answer["first/Rows"].tobytes() == expected.tobytes()


def check_odd_sessions(directory: Path) -> None:
    a_part_follows_the_chain_of_the_whole_graph(directory / "part")
    no_hook_runs_in_the_middle_of_a_load(directory / "middle")
    what_hooks_have_stopped_can_still_be_saved(directory / "stopped")
    a_graph_that_records_has_the_layout_of_one_that_does_not(directory / "layout")
    what_another_checkpoint_initializes_is_loaded(directory / "initialized")
    what_cannot_be_saved_is_only_described(directory / "described")
    what_cannot_be_assigned_is_saved_and_described_and_refused_before_anything_is_loaded(
        directory / "unassigned"
    )
    variables_in_a_scope_that_is_named_like_a_table_are_not_its_slots(directory / "scope")
    inputs_and_targets_are_tensors_or_their_names(directory / "names")

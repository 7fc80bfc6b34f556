"""What is only speed in DeepRec: scripts that say it train as without it, and are told so once."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind
from hotdelta.compat.v1.graph import session_config
from hotdelta.errors import ConfigurationError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.small_graphs import assert_same_bits, live_state, monitored, new_graph, settle
from tests.docs.pages import ROOT, blocks_of

NOTHING = "changes nothing here"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The names that were said to change nothing, as in a process of one's own."""
    monkeypatch.setattr(session_config, "_said", set())
    caplog.set_level(logging.INFO)
    return lambda: [
        record.__dict__["fields"]["name"] for record in caplog.records if NOTHING in record.message
    ]


def train_like_the_modelzoo(directory: Path, *, is_deeprec: bool) -> dict[str, np.ndarray]:
    """As its models are written: parsed lines, staged, into grouped embedding columns."""
    lines = tf.data.Dataset.from_tensor_slices([f"{number % 2},{number % 7}" for number in range(40)])
    dataset = lines.repeat(2).batch(8).map(lambda text: tf.io.decode_csv(text, [[0], [" "]])).prefetch(2)
    iterator = tf.data.Iterator.from_structure(
        tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)
    )
    label, word = iterator.get_next()
    next_element: Any = ({"word": word}, label)
    config, hooks = tf.ConfigProto(allow_soft_placement=True), []
    config.inter_op_parallelism_threads = 2
    options = {}
    if is_deeprec:
        next_element = tf.staged(next_element, num_threads=4, capacity=40)
        config.graph_options.optimizer_options.do_smart_stage = True
        config.graph_options.optimizer_options.do_op_fusion = True
        config.graph_options.optimizer_options.micro_batch_num = 0
        smart = tf.SmartStageOptions(capacity=40, num_threads=4)
        config.graph_options.optimizer_options.smart_stage_options.CopyFrom(smart)
        config.executor_policy = tf.ExecutorPolicy.USE_COST_MODEL_EXECUTOR
        hooks.append(tf.make_prefetch_hook())
        options["do_fusion"] = True
        with tf.feature_column.group_embedding_column_scope(name="categorical"):
            column = _column(options)
    else:
        column = _column(options)
    features, labels = next_element
    logits = tf.layers.dense(tf.feature_column.input_layer(features, [column]), 1, kernel_initializer="ones")
    loss = tf.losses.sigmoid_cross_entropy(labels[:, tf.newaxis], logits)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.AdamAsyncOptimizer(0.1).minimize(loss, global_step=step)
    if is_deeprec:
        tf.train.mark_target_node([train_op])
    scaffold = tf.train.Scaffold(
        local_init_op=tf.group(tf.local_variables_initializer(), iterator.make_initializer(dataset)),
        incremental_save_restore=True,
    )
    states = []
    with monitored(directory, scaffold=scaffold, hooks=hooks, config=config) as session:
        while not session.should_stop():
            session.run([loss, train_op])
            settle()
            states.append(live_state(session._tf_sess()))
    return states[-1]


def _column(options: dict[str, Any]) -> Any:
    categorical = tf.feature_column.categorical_column_with_hash_bucket("word", 20)
    return tf.feature_column.embedding_column(categorical, dimension=3, combiner="mean", **options)


def test_a_script_of_the_modelzoo_trains_as_without_the_switches(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    with new_graph():
        plain = train_like_the_modelzoo(tmp_path / "plain", is_deeprec=False)
    assert said() == []
    with new_graph():
        switched = train_like_the_modelzoo(tmp_path / "switched", is_deeprec=True)
    assert plain["global_step"] == 10
    assert_same_bits(plain, switched)
    assert_same_bits(newest_state(tmp_path / "switched"), switched)
    assert len(manifests(tmp_path / "switched", Kind.DELTA)) == 6
    assert sorted(said()) == [
        "do_fusion",
        "executor_policy",
        "graph_options.optimizer_options.do_op_fusion",
        "graph_options.optimizer_options.do_smart_stage",
        "smart_stage_options",
        "tf.feature_column.group_embedding_column_scope",
        "tf.make_prefetch_hook",
        "tf.staged",
        "tf.train.mark_target_node",
    ]


def test_the_script_of_the_page_runs_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example, variables = blocks_of(ROOT / "docs" / "from-deeprec.md")
    Path("data").mkdir()
    for number in range(2):
        Path(f"data/{number}.csv").write_text("one,1\ntwo,0\n" * 32)
    with new_graph():
        example.run({}, {})
    assert newest_state(Path("run"))["global_step"] == 4
    with new_graph():
        variables.run({}, {})


def test_the_names_of_deeprec_are_these() -> None:
    names = {"ConfigProto", "ExecutorPolicy", "SmartStageOptions", "make_prefetch_hook", "staged"}
    names |= {
        "get_embedding_variable",
        "EmbeddingVariableOption",
        "CounterFilter",
        "CBFFilter",
        "GlobalStepEvict",
    }
    names |= {"L2WeightEvict", "InitializerOption", "StorageOption"}
    optimizers = {"AdagradDecayOptimizer", "AdagradDecayOptimizerV2", "AdamAsyncOptimizer"}
    columns = {"embedding_column", "group_embedding_column_scope", "shared_embedding_columns"}
    columns |= {"categorical_column_with_embedding"}
    for module, expected in (
        (tf, names),
        (tf.compat.v1, names),
        (tf.train, optimizers | {"mark_target_node"}),
        (tf.feature_column, columns),
    ):
        assert expected <= {*module.__all__} & {*dir(module)}


def test_each_switch_is_said_once_and_read_back(said: Callable[[], list[str]]) -> None:
    config = tf.ConfigProto(executor_policy=1, tensor_fuse=False, device_filters=["/job:ps"])
    assert config.executor_policy is tf.ExecutorPolicy.USE_INLINE_EXECUTOR
    for _ in range(2):
        config.executor_policy = 2
        config.graph_options.optimizer_options.do_smart_stage = True
    options = copy.deepcopy(config).graph_options.optimizer_options
    assert (options.do_smart_stage, options.do_op_fusion, options.micro_batch_num) == (True, False, 0)
    assert said() == ["executor_policy", "graph_options.optimizer_options.do_smart_stage"]


def test_a_config_is_the_message_that_it_was() -> None:
    stock = tensorflow.compat.v1.ConfigProto
    config = tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True))
    config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    config.graph_options.build_cost_model = 3
    config.device_filters.append("/job:ps")
    config.device_count["CPU"] = 2
    expected = stock(gpu_options=tf.GPUOptions(allow_growth=True), device_filters=["/job:ps"])
    expected.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    expected.graph_options.build_cost_model = 3
    expected.device_count["CPU"] = 2
    assert config == expected
    assert repr(config) == repr(expected)
    assert config.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    assert isinstance(config, tf.ConfigProto)
    assert isinstance(config, stock)
    assert isinstance(expected, tf.ConfigProto)
    assert tf.ConfigProto.FromString(config.SerializeToString()) == expected
    other = tf.ConfigProto()
    other.CopyFrom(config)
    assert other == config
    assert other != tf.ConfigProto()
    other.graph_options.optimizer_options.CopyFrom(tf.OptimizerOptions())
    other.MergeFrom(stock(log_device_placement=True))
    assert other.log_device_placement
    assert other != config
    for wrong in ("no_such_field", "do_smart_stage"):
        with pytest.raises(AttributeError, match=wrong):
            setattr(config, wrong, True)
        with pytest.raises(AttributeError, match=wrong):
            getattr(config, wrong)


def test_every_kind_of_session_and_a_server_take_the_config(tmp_path: Path) -> None:
    config = tf.ConfigProto(device_count={"CPU": 1}, executor_policy=tf.ExecutorPolicy.USE_INLINE_EXECUTOR)
    server = tf.train.Server.create_local_server(config=config, start=False)
    assert server.server_def.default_session_config.device_count["CPU"] == 1
    for open_session in (
        lambda: tf.train.MonitoredTrainingSession(config=config),
        lambda: tf.train.SingularMonitoredSession(config=config),
        lambda: tf.train.MonitoredSession(tf.train.ChiefSessionCreator(config=config)),
        lambda: tf.train.Supervisor(logdir=str(tmp_path)).managed_session(config=config),
        lambda: tf.Session(config=config),
    ):
        with new_graph():
            three = tf.constant(3) + tf.cast(tf.train.get_or_create_global_step().initial_value, tf.int32)
            with open_session() as session:
                assert session.run(three) == 3
    assert tf.estimator.RunConfig(session_config=config).session_config == config


def test_a_server_of_deeprecs_protocols_speaks_grpc(said: Callable[[], list[str]]) -> None:
    cluster = tf.train.ClusterSpec({"worker": ["localhost:0"]})
    server = tf.distribute.Server(cluster, "worker", 0, protocol="star_server", start=False)
    assert server.target.startswith("grpc://")
    assert said() == ["protocol=star_server"]


def set_micro_batches() -> None:
    tf.ConfigProto().graph_options.optimizer_options.micro_batch_num = 4


def set_smart_stage() -> None:
    tf.ConfigProto().graph_options.optimizer_options.smart_stage_options.CopyFrom(tf.ConfigProto())


@pytest.mark.parametrize(
    "use, problem",
    [
        (lambda: tf.staged([1], {"a": 1}), "feed_dict: the threads"),
        (lambda: tf.staged([1], feed_generator=iter([1])), "feed_generator: the threads"),
        (lambda: tf.staged([1], num_threads=0), "num_threads is 0"),
        (lambda: tf.staged([1], num_clients=1.5), "num_clients is 1.5"),
        (lambda: tf.staged([1], threads=3), "tf.staged has no threads"),
        (lambda: tf.staged([1], ignored_exception_types=(3,)), "no batch is left out"),
        (lambda: tf.SmartStageOptions(closed_exception_types=(3,)), "ends with OutOfRangeError"),
        (set_micro_batches, "micro_batch_num is 4.*the sum of so many batches"),
        (set_smart_stage, "smart_stage_options is"),
        (lambda: tf.ConfigProto(executor_policy=7), "executor_policy is 7.*give a tf.ExecutorPolicy"),
    ],
)
def test_what_would_change_training_is_refused(use: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        use()


def test_what_is_staged_has_containers_of_its_own() -> None:
    with new_graph():
        ids = tf.SparseTensor([[0, 0]], [3], [1, 1])
        features = {"b": [ids, None], "a": tf.constant(1)}
        staged = tf.staged(
            features, closed_exception_types=(tf.errors.OutOfRangeError, tf.errors.OUT_OF_RANGE)
        )
        assert list(staged) == ["b", "a"]
        assert staged["b"] == [ids, None]
        assert staged["a"] is features["a"]
        staged["b"][1] = 3
        assert features["b"][1] is None

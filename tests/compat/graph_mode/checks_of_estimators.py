"""Estimators: the classic walk-through, incremental training, evaluation at the newest delta, and export.

And the examples of docs/tf1.md, which need one; the last of them is run by estimator_program.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from exporter.loaded_graph import LoadedGraph
from hotdelta.chain.format.manifest import Kind
from hotdelta.errors import ConfigurationError, ModelMismatchError
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.iris import classifier, eval_input, train_input
from tests.compat.graph_mode.small_graphs import ROWS
from tests.docs.pages import PYTHON, ROOT, blocks_of


def test_the_iris_walk_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_dir = tmp_path / "models" / "iris"
    estimator = classifier(str(model_dir))
    estimator.train(train_input, steps=200)
    found = {path.name for path in model_dir.iterdir()}
    assert {
        "checkpoint",
        "graph.pbtxt",
        "model.ckpt-0.index",
        "model.ckpt-200.index",
        "model.ckpt-200.meta",
    } <= found
    assert list(model_dir.glob("events.out.tfevents.*"))
    result = estimator.evaluate(eval_input)
    assert result["global_step"] == 200
    assert result["accuracy"] > 0.8
    predictions = list(estimator.predict(eval_input))
    assert len(predictions) == 120
    assert sum(predictions[0]["probabilities"]) == pytest.approx(1)
    estimator.train(train_input, steps=20)
    assert estimator.evaluate(eval_input)["global_step"] == 220
    with pytest.raises(
        ModelMismatchError, match=r"hiddenlayer_0/kernel: shape \[4, 20\] in the model, \[4, 10\]"
    ):
        classifier(str(model_dir), hidden=20).train(train_input, steps=1)
    assert estimator.latest_checkpoint() == str(model_dir / "model.ckpt-220")
    temporary = classifier(None)
    assert temporary.model_dir in capsys.readouterr().out
    assert Path(temporary.model_dir).is_dir()


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """The script of the issue, with a model in its gaps."""
    partitioner = tf.fixed_size_partitioner(3)
    table = tf.get_variable(
        "table", [ROWS, 4], initializer=tf.random_uniform_initializer(), partitioner=partitioner
    )
    rows = tf.nn.embedding_lookup(table, features["id"])
    hidden = tf.layers.dropout(
        tf.layers.dense(rows, 8, tf.nn.relu), training=mode == tf.estimator.ModeKeys.TRAIN
    )
    hidden = tf.layers.batch_normalization(hidden, training=mode == tf.estimator.ModeKeys.TRAIN)
    predictions = {"score": tf.layers.flatten(tf.layers.dense(hidden, 1))[:, 0]}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.mean_squared_error(labels, predictions["score"])
    scaffold = tf.train.Scaffold(
        saver=tf.train.Saver(sharded=True, incremental_save_restore=True),
        incremental_save_restore=True,
    )
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, scaffold=scaffold)
    step = tf.train.get_global_step()
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    logging_hook = tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=100)
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        training_hooks=[logging_hook],
        training_chief_hooks=[
            tf.train.CheckpointSaverHook(
                checkpoint_dir=params["model_dir"],
                save_secs=params["save_checkpoints_secs"],
                save_steps=params["save_checkpoints_steps"],
                scaffold=scaffold,
                incremental_save_steps=5,
            )
        ],
        scaffold=scaffold,
    )


def examples(count: int = 64) -> Any:
    ids = np.arange(count) % ROWS
    return tf.data.Dataset.from_tensor_slices(({"id": ids}, (ids % 7).astype("f4"))).repeat().batch(8)


def serving_input() -> Any:
    ids = tf.placeholder(tf.int64, [None], name="id")
    return tf.estimator.export.ServingInputReceiver({"id": ids}, {"id": ids})


def estimator_of(model_dir: Path) -> Any:
    params = {"model_dir": str(model_dir), "save_checkpoints_secs": None, "save_checkpoints_steps": 1000}
    return tf.estimator.Estimator(model_fn, str(model_dir), tf.estimator.RunConfig(tf_random_seed=1), params)


def test_an_incremental_estimator_trains_evaluates_and_exports_its_newest_delta(tmp_path: Path) -> None:
    estimator = estimator_of(tmp_path / "model")
    estimator.train(examples, steps=12)
    steps = [manifest.step for manifest in manifests(tmp_path / "model", Kind.DELTA)]
    assert steps[-1] == 12
    assert len(steps) >= 2
    last_full = manifests(tmp_path / "model", Kind.FULL)[-1]
    assert estimator.evaluate(examples, steps=3)["global_step"] == 12

    def inputs() -> Any:
        return tf.data.Dataset.from_tensors({"id": np.arange(ROWS)})

    predicted = np.array([answer["score"] for answer in estimator.predict(inputs)])
    path = Path(
        estimator.export_saved_model(str(tmp_path / "export"), serving_input, save_incr_model=True).decode()
    )
    assert re.fullmatch(r"\d{10}", path.name)
    with LoadedGraph(path) as graph:
        answer = graph.call("serving_default", {"id": np.arange(ROWS)})
        np.testing.assert_array_equal(answer["score"], predicted)
        graph.restore("restore_full", str(tmp_path / "model" / last_full.prefix))
        np.testing.assert_array_equal(
            graph.call("serving_default", {"id": np.arange(ROWS)})["score"], predicted
        )


def test_an_estimator_without_deltas_refuses_an_incremental_export(tmp_path: Path) -> None:
    estimator = classifier(str(tmp_path / "model"))
    estimator.train(train_input, steps=1)
    placeholders = {name: tf.placeholder(tf.float32, [None]) for name in ("SepalLength", "SepalWidth")}
    placeholders |= {name: tf.placeholder(tf.float32, [None]) for name in ("PetalLength", "PetalWidth")}
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn(placeholders)
    with pytest.raises(ConfigurationError, match="nothing incremental to export"):
        estimator.export_saved_model(str(tmp_path / "export"), receiver, save_incr_model=True)
    for option in ({"as_text": True}, {"assets_extra": {"words.txt": __file__}}):
        with pytest.raises(ConfigurationError, match=next(iter(option))):
            estimator.export_saved_model(str(tmp_path / "export"), receiver, **option)
    path = Path(estimator.export_saved_model(str(tmp_path / "export"), receiver).decode())
    with LoadedGraph(path) as graph:
        answer = graph.call("serving_default", {name: [1.0, 2.0] for name in placeholders})
    assert answer["probabilities"].shape == (2, 3)


def test_run_config_has_the_classic_defaults_and_refuses_deltas_without_fulls() -> None:
    config = tf.estimator.RunConfig()
    assert (config.save_checkpoints_secs, config.save_checkpoints_steps, config.keep_checkpoint_max) == (
        600,
        None,
        5,
    )
    assert tf.estimator.RunConfig(save_checkpoints_steps=7).save_checkpoints_secs is None
    with pytest.raises(ConfigurationError, match="deltas need a full"):
        tf.estimator.RunConfig(save_checkpoints_secs=None, save_incremental_checkpoint_secs=5)


def test_deltas_by_run_config_alone(tmp_path: Path) -> None:
    columns = [
        tf.feature_column.embedding_column(tf.feature_column.categorical_column_with_identity("id", ROWS), 4)
    ]
    estimator = tf.estimator.DNNClassifier(
        feature_columns=columns,
        hidden_units=[4],
        model_dir=str(tmp_path / "model"),
        config=tf.estimator.RunConfig(save_incremental_checkpoint_steps=4, keep_checkpoint_max=2),
    )

    def inputs() -> Any:
        ids = np.arange(64) % ROWS
        return tf.data.Dataset.from_tensor_slices(({"id": ids}, ids % 2)).repeat().batch(8)

    for _ in range(3):
        estimator.train(inputs, steps=8)
    assert estimator.evaluate(inputs, steps=2)["global_step"] == 24
    assert [manifest.step for manifest in manifests(tmp_path / "model", Kind.FULL)] == [16, 24]


def test_the_examples_of_the_page_run_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = [block for block in blocks_of(ROOT / "docs" / "tf1.md") if block.info == PYTHON]
    imported, direct, hooked, by_hand, configured, exported, _ = page
    scope: dict[str, Any] = {}
    imported.run(scope, {})
    shorter = {"range(100)": "range(3)"}
    with tf.Graph().as_default():
        direct.run(scope, shorter)
    with tf.Graph().as_default():
        replace(direct, text=direct.text.partition("with ")[0]).run(scope, {})
        hooked.run(scope, shorter)
    assert [manifest.position.run for manifest in manifests(Path("run"), Kind.DELTA)][-1] == 2
    for _ in range(2):
        with tf.Graph().as_default():
            replace(direct, text=direct.text.partition("with ")[0]).run(scope, {})
            by_hand.run(scope, {"101": "5", "% 50": "% 4", "% 10": "% 1"})
    assert [manifest.step for manifest in manifests(Path("by_hand"))] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    configured.run(scope, {})
    assert scope["config"].save_incremental_checkpoint_secs == 20
    # Every one of its calls is made above and in checks_of_exports, which takes seconds.
    compile(exported.text, str(exported), "exec")

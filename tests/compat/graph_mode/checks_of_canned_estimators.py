"""The ready-made estimators: as TensorFlow 1.15 has them, and with deltas."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from exporter.loaded_graph import LoadedGraph
from hotdelta.chain.format.manifest import Kind
from hotdelta.errors import ConfigurationError
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.small_estimators import SettlingHook
from tests.compat.graph_mode.small_graphs import ROWS, new_graph

COUNT = 12
NUMBER = tf.feature_column.numeric_column("x")
ID = tf.feature_column.categorical_column_with_identity("id", ROWS)
EMBEDDED = tf.feature_column.embedding_column(ID, 4)
FEATURES = {"id": np.arange(COUNT), "x": np.linspace(-1, 1, COUNT, dtype="f4")}
NUMBERS = (3 * FEATURES["x"] + 1).astype("f4")

_DEEP_END = (
    "optimizer activation_fn dropout input_layer_partitioner config warm_start_from loss_reduction batch_norm"
)
_LINEAR_END = "optimizer config partitioner warm_start_from loss_reduction sparse_combiner"
_COMBINED = (
    "model_dir linear_feature_columns linear_optimizer dnn_feature_columns dnn_optimizer dnn_hidden_units "
    "dnn_activation_fn dnn_dropout"
)
_COMBINED_END = (
    "input_layer_partitioner config warm_start_from loss_reduction batch_norm linear_sparse_combiner"
)
_CLASSES = "n_classes weight_column label_vocabulary"
_NUMBERS = "label_dimension weight_column"
ARGUMENTS = {
    "DNNClassifier": f"hidden_units feature_columns model_dir {_CLASSES} {_DEEP_END}",
    "DNNRegressor": f"hidden_units feature_columns model_dir {_NUMBERS} {_DEEP_END}",
    "LinearClassifier": f"feature_columns model_dir {_CLASSES} {_LINEAR_END}",
    "LinearRegressor": f"feature_columns model_dir {_NUMBERS} {_LINEAR_END}",
    "DNNLinearCombinedClassifier": f"{_COMBINED} {_CLASSES} {_COMBINED_END}",
    "DNNLinearCombinedRegressor": f"{_COMBINED} {_NUMBERS} {_COMBINED_END}",
    "BaselineClassifier": f"model_dir {_CLASSES} optimizer config loss_reduction",
    "BaselineRegressor": f"model_dir {_NUMBERS} optimizer config loss_reduction",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_script_of_tensorflow_1_15_may_pass_its_arguments_in_order(name: str) -> None:
    parameters = inspect.signature(getattr(tf.estimator, name)).parameters
    assert " ".join(parameters) == ARGUMENTS[name]
    assert parameters["loss_reduction"].default == tf.losses.Reduction.SUM


def inputs(labels: Any, **features: Any) -> Any:
    data = (FEATURES | features, labels)
    return lambda: tf.data.Dataset.from_tensor_slices(data).batch(COUNT // 2)


def serialized_examples() -> list[bytes]:
    def example(number: int, x: float) -> Any:
        features = {
            "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[x])),
        }
        return tf.train.Example(features=tf.train.Features(feature=features))

    return [example(*pair).SerializeToString() for pair in zip(FEATURES["id"], FEATURES["x"], strict=True)]


def wide_and_deep(model_dir: Path, **options: Any) -> Any:
    return tf.estimator.DNNLinearCombinedClassifier(
        str(model_dir), [ID], dnn_feature_columns=[EMBEDDED, NUMBER], dnn_hidden_units=[4], **options
    )


def spec_of(estimator: Any, mode: str, labels: Any) -> Any:
    """In the default graph."""
    tf.train.get_or_create_global_step()
    features = {name: tf.constant(values) for name, values in FEATURES.items()}
    labels = None if labels is None else tf.constant(labels)
    return estimator.model_fn(features, labels, mode, estimator.config)


def test_variables_have_the_names_of_tensorflow_s_estimators(tmp_path: Path) -> None:
    with new_graph():
        spec_of(wide_and_deep(tmp_path, batch_norm=True), "train", np.arange(COUNT) % 2)
        names = {variable.op.name for variable in tf.global_variables()}
    layer, columns = "dnn/hiddenlayer_0", "dnn/input_from_feature_columns/input_layer"
    assert names >= {
        f"{columns}/id_embedding/embedding_weights",
        f"{layer}/kernel",
        f"{layer}/batchnorm_0/moving_mean",
        "dnn/logits/bias",
        "linear/linear_model/id/weights",
        "linear/linear_model/bias_weights",
        "linear/linear_model/id/weights/Ftrl",
        f"{layer}/kernel/Adagrad",
    }
    assert not {f"{layer}/kernel/Ftrl", "linear/linear_model/id/weights/Adagrad"} & names


def test_wide_and_deep_is_trained_exported_and_updated_by_deltas(tmp_path: Path) -> None:
    config = tf.estimator.RunConfig(
        tf_random_seed=1, save_incremental_checkpoint_steps=1, log_step_count_steps=None
    )
    estimator = wide_and_deep(tmp_path / "model", config=config)
    labels = inputs(np.arange(COUNT) % 2)
    estimator.train(labels, hooks=[SettlingHook()])
    spec = tf.feature_column.make_parse_example_spec([EMBEDDED, NUMBER])
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    path = Path(
        estimator.export_saved_model(str(tmp_path / "export"), receiver, save_incr_model=True).decode()
    )
    estimator.train(labels, hooks=[SettlingHook()])
    deltas = [delta for delta in manifests(tmp_path / "model", Kind.DELTA) if delta.position.run == 2]
    assert [delta.step for delta in deltas] == [3, 4, 4]
    tables = deltas[0].tables
    assert [(table.tracking, table.rows_changed) for table in tables.values()] == [
        ("touched", COUNT // 2)
    ] * 2
    predicted = list(estimator.predict(labels))
    with LoadedGraph(path) as graph:
        for delta in deltas:
            prefix = tmp_path / "model" / ".incremental_checkpoint" / delta.prefix
            graph.restore("restore_incremental", str(prefix))
        answers = {
            name: graph.call(name, {"examples": serialized_examples()})
            for name in ("serving_default", "predict", "classification", "regression")
        }
    assert set(predicted[0]) == set(answers["predict"]) == set(answers["serving_default"])
    np.testing.assert_array_equal(answers["predict"]["logits"], [each["logits"] for each in predicted])
    np.testing.assert_array_equal(answers["regression"]["outputs"], answers["predict"]["logistic"])
    np.testing.assert_array_equal(answers["classification"]["scores"], answers["predict"]["probabilities"])
    assert answers["classification"]["classes"][0].tolist() == [b"0", b"1"]


OF_TWO_CLASSES = """
    accuracy accuracy_baseline auc auc_precision_recall average_loss label/mean precision prediction/mean recall
"""


@pytest.mark.parametrize("n_classes, keys", [(2, OF_TWO_CLASSES), (3, "accuracy average_loss")])
def test_classifiers_have_the_metrics_of_tensorflow(tmp_path: Path, n_classes: int, keys: str) -> None:
    estimator = tf.estimator.BaselineClassifier(str(tmp_path), n_classes)
    with new_graph():
        spec = spec_of(estimator, "eval", np.arange(COUNT) % n_classes)
    assert sorted(spec.eval_metric_ops) == keys.split()


def test_a_linear_regressor_learns_a_line(tmp_path: Path) -> None:
    estimator = tf.estimator.LinearRegressor([NUMBER], str(tmp_path), optimizer=None)
    estimator.train(lambda: inputs(NUMBERS)().repeat(60))
    metrics = estimator.evaluate(inputs(NUMBERS))
    predicted = np.array([answer["predictions"] for answer in estimator.predict(inputs(NUMBERS))])
    assert predicted.shape == (COUNT, 1)
    assert metrics["average_loss"] == pytest.approx(np.mean((predicted[:, 0] - NUMBERS) ** 2), rel=1e-4)
    assert metrics["average_loss"] < 0.1
    assert metrics["loss"] == pytest.approx(metrics["average_loss"] * COUNT / 2, rel=1e-5)
    assert metrics["label/mean"] == pytest.approx(NUMBERS.mean(), rel=1e-5)
    assert metrics["prediction/mean"] == pytest.approx(predicted.mean(), rel=1e-5)


def test_a_baseline_predicts_the_mean_and_looks_at_no_feature(tmp_path: Path) -> None:
    weights = np.array([1, 3] * (COUNT // 2), "f4")
    labels = np.stack([np.arange(COUNT) % 2, np.full(COUNT, 2)], 1).astype("f4")
    estimator = tf.estimator.BaselineRegressor(
        str(tmp_path), 2, "w", optimizer=lambda: tf.train.GradientDescentOptimizer(0.02)
    )
    estimator.train(lambda: inputs(labels, w=weights)().repeat(60))
    predicted = np.array([answer["predictions"] for answer in estimator.predict(inputs(labels, w=weights))])
    np.testing.assert_allclose(predicted, [[0.75, 2]] * COUNT, rtol=1e-3)


def test_a_probability_may_be_the_label_of_two_classes(tmp_path: Path) -> None:
    estimator = tf.estimator.BaselineClassifier(
        str(tmp_path), optimizer="SGD", loss_reduction="weighted_mean"
    )
    for label in (0.25, 1.25):
        with new_graph():
            loss = spec_of(estimator, "train", np.full(COUNT, label)).loss
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                if label < 1:
                    assert session.run(loss) == pytest.approx(np.log(2))
                else:
                    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not from 0 to 1.*1.25"):
                        session.run(loss)


LINEAR = {"feature_columns": [NUMBER]}


@pytest.mark.parametrize(
    "name, options, labels, problem",
    [
        ("LinearClassifier", LINEAR, None, "gives no labels"),
        ("LinearClassifier", LINEAR, np.zeros([COUNT, 2]), r"shape \(12, 2\).*an example has 1"),
        (
            "LinearRegressor",
            LINEAR | {"label_dimension": 2},
            np.zeros(COUNT),
            r"shape \(12,\).*label_dimension",
        ),
        ("LinearClassifier", LINEAR, np.array(["a"] * COUNT), "labels of string without label_vocabulary"),
        ("LinearRegressor", LINEAR, np.array(["a"] * COUNT), "labels of string"),
        ("LinearRegressor", LINEAR | {"label_dimension": 0}, np.zeros(COUNT), "label_dimension is 0"),
        ("LinearRegressor", LINEAR | {"loss_reduction": "none"}, np.zeros(COUNT), "loss_reduction is 'none'"),
        ("LinearRegressor", LINEAR | {"optimizer": "adam"}, np.zeros(COUNT), "optimizer 'adam' is unknown"),
        ("LinearRegressor", LINEAR | {"optimizer": 7}, np.zeros(COUNT), "optimizer is a int of builtins"),
        ("DNNLinearCombinedRegressor", {}, np.zeros(COUNT), "neither linear_feature_columns nor"),
        (
            "DNNLinearCombinedRegressor",
            {"dnn_feature_columns": [NUMBER]},
            np.zeros(COUNT),
            "dnn_hidden_units",
        ),
    ],
)
def test_what_cannot_be_trained_says_why(
    tmp_path: Path, name: str, options: dict[str, Any], labels: Any, problem: str
) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match=problem):
        spec_of(getattr(tf.estimator, name)(model_dir=str(tmp_path), **options), "train", labels)

"""DNNClassifier with words for labels and with weights, warm starts, and what else tf.estimator has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from hotdelta.errors import ConfigurationError

WORDS = ["no", "yes"]
COUNT = 12


def classifier(model_dir: Path, n_classes: int, **options: Any) -> Any:
    return tf.estimator.DNNClassifier(
        [4], [tf.feature_column.numeric_column("x")], str(model_dir), n_classes, **options
    )


def inputs(labels: Any, **features: Any) -> Any:
    features.setdefault("x", np.linspace(-1, 1, COUNT, dtype="f4"))
    return lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(COUNT // 2)


def test_labels_are_words_of_the_vocabulary(tmp_path: Path) -> None:
    estimator = classifier(tmp_path, 2, label_vocabulary=WORDS)
    labels = np.array(WORDS * (COUNT // 2), "S")
    estimator.train(inputs(labels))
    assert estimator.evaluate(inputs(labels))["global_step"] == 2
    classes = [answer["classes"][0].decode() for answer in estimator.predict(inputs(labels))]
    assert set(classes) <= set(WORDS)
    wrong = np.array([*labels[1:], b"maybe"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in label_vocabulary.*maybe"):
        estimator.evaluate(inputs(wrong))
    with pytest.raises(ConfigurationError, match="one word for each class"):
        classifier(tmp_path, 2, label_vocabulary=WORDS[:1])


def test_a_label_that_is_no_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not from 0 to 1.*7"):
        classifier(tmp_path, 2).train(inputs(np.full(COUNT, 7)))


@pytest.mark.parametrize(
    "n_classes, column, factor",
    [(2, "w", 1), (3, tf.feature_column.numeric_column("w", normalizer_fn=lambda weight: weight / 10), 10)],
)
def test_an_example_of_weight_3_counts_as_three_of_them(
    tmp_path: Path, n_classes: int, column: Any, factor: int
) -> None:
    labels, weights = np.arange(COUNT) % n_classes, np.arange(COUNT) % 4
    x = np.linspace(-1, 1, COUNT, dtype="f4")
    estimator = classifier(tmp_path, n_classes, weight_column=column)
    estimator.train(inputs(labels, x=x, w=weights * factor))
    answer = estimator.evaluate(inputs(labels, x=x, w=weights * factor))
    repeated = np.repeat(np.arange(COUNT), weights)
    expected = classifier(tmp_path, n_classes).evaluate(inputs(labels[repeated], x=x[repeated]))
    del answer["loss"], expected["loss"]
    assert ("auc" in answer) == (n_classes == 2)
    assert answer == pytest.approx(expected, rel=1e-5)


def test_two_weights_for_an_example_are_refused(tmp_path: Path) -> None:
    pairs = tf.feature_column.numeric_column("w", shape=2)
    with pytest.raises(ConfigurationError, match="2 numbers"):
        classifier(tmp_path, 2, weight_column=pairs).train(inputs(np.ones(COUNT), w=np.ones([COUNT, 2])))


def first_values(estimator: Any) -> Any:
    """Of the kernels, at step 0."""
    reader = tf.train.load_checkpoint(str(Path(estimator.model_dir) / "model.ckpt-0"))
    return [reader.get_tensor(f"dnn/{name}/kernel") for name in ("hiddenlayer_0", "logits")]


def test_a_warm_start_takes_variables_of_another_training_once(tmp_path: Path) -> None:
    labels = inputs(np.arange(COUNT) % 2)
    old = classifier(tmp_path / "old", 2)
    old.train(labels)
    expected = [old.get_variable_value(f"dnn/{name}/kernel") for name in ("hiddenlayer_0", "logits")]
    deltas = tf.estimator.RunConfig(save_incremental_checkpoint_steps=1)
    settings = tf.estimator.WarmStartSettings(old.latest_checkpoint(), vars_to_warm_start=".*hiddenlayer.*")
    whole = classifier(tmp_path / "whole", 2, warm_start_from=tmp_path / "old", config=deltas).train(labels)
    part = classifier(tmp_path / "part", 2, warm_start_from=settings).train(labels)
    np.testing.assert_array_equal(first_values(whole)[0], expected[0])
    np.testing.assert_array_equal(first_values(whole)[1], expected[1])
    np.testing.assert_array_equal(first_values(part)[0], expected[0])
    assert not np.array_equal(first_values(part)[1], expected[1])
    with pytest.raises(ConfigurationError, match="holds no checkpoint"):
        classifier(tmp_path / "new", 2, warm_start_from=str(tmp_path / "nowhere")).train(labels)
    with pytest.raises(ConfigurationError, match="warm_start_from is 7"):
        classifier(tmp_path / "new", 2, warm_start_from=7)


def test_a_spec_is_replaced_as_a_namedtuple_is() -> None:
    spec = tf.estimator.EstimatorSpec(tf.estimator.ModeKeys.PREDICT, predictions=1)
    assert spec._replace(predictions=2).predictions == 2
    with pytest.raises(ConfigurationError, match="no predictions"):
        spec._replace(predictions=None)


@pytest.mark.parametrize(
    "name, advice",
    [
        ("DNNEstimator", "write a model function for tf.estimator.Estimator"),
        ("BoostedTreesClassifier", "trees are no variables that a delta could carry"),
        ("inputs", "tf.data.Dataset.from_tensor_slices"),
        ("AdagradOptimizer", "use tf.train.AdagradOptimizer"),
    ],
)
def test_what_is_not_in_tf_estimator_says_what_to_do(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=rf"tf\.estimator\.{name} is not here: .*{advice}"):
        getattr(tf.estimator, name)
    assert not hasattr(tf.estimator, name)
    with pytest.raises(AttributeError, match=r"experimental\.LinearSDCA is not here: there are make_early"):
        tf.estimator.experimental.LinearSDCA  # noqa: B018


HOOKS = """
    CheckpointSaverHook CheckpointSaverListener FeedFnHook FinalOpsHook GlobalStepWaiterHook LoggingTensorHook
    NanLossDuringTrainingError NanTensorHook ProfilerHook SecondOrStepTimer SessionRunArgs SessionRunContext
    SessionRunHook SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook VocabInfo
"""


@pytest.mark.parametrize("name", HOOKS.split())
def test_hooks_are_in_tf_estimator_too(name: str) -> None:
    assert getattr(tf.estimator, name) is getattr(tf.train, name)
    assert name in dir(tf.estimator)


def test_the_server_of_tf_distribute_is_that_of_tf_train() -> None:
    assert tf.distribute.Server is tf.compat.v1.distribute.Server is tf.train.Server
    assert tf.distribute.Strategy is not None

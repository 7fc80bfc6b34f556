"""What a ready-made estimator makes of its logits: predictions, loss, metrics and the signatures of an export.

All ready-made estimators share these two heads; the keys are those of TensorFlow's estimators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.estimator.export import (
    DEFAULT_SIGNATURE,
    ClassificationOutput,
    PredictOutput,
    RegressionOutput,
)
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1

SUM = v1.losses.Reduction.SUM
_REDUCTIONS = tuple(sorted(set(v1.losses.Reduction.all()) - {v1.losses.Reduction.NONE}))

Tensors = dict[str, tf.Tensor]


class Head(ABC):
    """Logits are [examples, `logits_size`], labels [examples, `label_size`]; what is in them is the subclass's."""

    logits_size: int
    label_size: int
    _hint_of_size = ""

    def __init__(self, weight_column: Any, loss_reduction: str) -> None:
        if loss_reduction not in _REDUCTIONS:
            raise ConfigurationError(
                f"loss_reduction is {loss_reduction!r}",
                hint=f"use one of tf.losses.Reduction: {', '.join(_REDUCTIONS)}",
            )
        self._weight_column = weight_column
        self._reduction = loss_reduction

    def spec(
        self,
        features: Mapping[str, Any],
        labels: Any,
        mode: str,
        logits: tf.Tensor,
        train: Callable[[tf.Tensor], tf.Operation],
    ) -> EstimatorSpec:
        """`train` makes the operation that trains on a loss."""
        predictions = self._predictions(logits)
        if mode == ModeKeys.PREDICT:
            # TensorFlow's default has the outputs of the classification or regression alone, of serialized examples.
            outputs = {DEFAULT_SIGNATURE: PredictOutput(predictions), "predict": PredictOutput(predictions)}
            outputs |= self._export_outputs(predictions)
            return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
        labels = self._checked_labels(self._shaped(labels, logits))
        losses, weights = self._losses(labels, logits), self._weights(features)
        loss = v1.losses.compute_weighted_loss(losses, weights, reduction=self._reduction)
        if mode == ModeKeys.EVAL:
            metrics = {
                "average_loss": v1.metrics.mean(losses, weights),
                **self._metrics(labels, predictions, weights),
            }
            return EstimatorSpec(mode, predictions=predictions, loss=loss, eval_metric_ops=metrics)
        if self._reduction == SUM:
            v1.summary.scalar("average_loss", loss / tf.reduce_sum(weights * tf.ones_like(losses)))
        return EstimatorSpec(mode, predictions=predictions, loss=loss, train_op=train(loss))

    def _shaped(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        if labels is None:
            raise ConfigurationError(
                "the input function gives no labels", hint="return (features, labels), or a dataset of them"
            )
        if isinstance(labels, Mapping | tf.SparseTensor):
            raise ConfigurationError(
                f"the labels are a {type(labels).__name__}", hint="give one dense tensor of labels"
            )
        labels = tf.convert_to_tensor(labels)
        columns = labels.shape.as_list()[1:] if labels.shape.rank else []
        if columns not in ([], [None], [self.label_size]) or (not columns and self.label_size > 1):
            raise ConfigurationError(
                f"labels of shape {labels.shape}, where an example has {self.label_size}",
                hint=f"give labels of shape [examples, {self.label_size}]{self._hint_of_size}",
            )
        return tf.reshape(labels, [tf.shape(logits)[0], self.label_size])

    def _weights(self, features: Mapping[str, Any]) -> Any:
        """[examples, 1], or as many as there are labels; 1.0: all weigh the same."""
        column = self._weight_column
        if column is None:
            return 1.0
        if isinstance(column, str):
            column = tf.feature_column.numeric_column(column)
        weights = v1.feature_column.input_layer(dict(features), [column])
        if weights.shape[1] not in (1, self.label_size):
            raise ConfigurationError(
                f"weight_column has {weights.shape[1]} numbers for each example",
                hint="give a numeric column of one",
            )
        return weights

    @abstractmethod
    def _predictions(self, logits: tf.Tensor) -> Tensors: ...

    @abstractmethod
    def _export_outputs(self, predictions: Tensors) -> dict[str, Any]: ...

    @abstractmethod
    def _checked_labels(self, labels: tf.Tensor) -> tf.Tensor: ...

    @abstractmethod
    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """One for each label."""

    @abstractmethod
    def _metrics(self, labels: tf.Tensor, predictions: Tensors, weights: Any) -> dict[str, Any]: ...


class ClassificationHead(Head):
    """Of two classes or more. Labels are class ids from 0, or words of `label_vocabulary`.

    Of two classes without a vocabulary a label may be anything from 0 to 1: the probability of class 1.
    """

    label_size = 1

    def __init__(
        self, n_classes: int, weight_column: Any, label_vocabulary: Sequence[str] | None, loss_reduction: str
    ) -> None:
        super().__init__(weight_column, loss_reduction)
        if n_classes < 2:
            raise ConfigurationError(f"{n_classes} classes", hint="give n_classes of at least 2")
        if label_vocabulary is not None and len(label_vocabulary) != n_classes:
            raise ConfigurationError(
                f"label_vocabulary has {len(label_vocabulary)} words for {n_classes} classes",
                hint="give one word for each class",
            )
        self._n_classes = n_classes
        self._vocabulary = label_vocabulary
        self.logits_size = 1 if self._is_binary else n_classes

    @property
    def _is_binary(self) -> bool:
        return self._n_classes == 2

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        two_sided = tf.concat([tf.zeros_like(logits), logits], 1) if self._is_binary else logits
        class_ids = tf.argmax(two_sided, 1)[:, tf.newaxis]
        predictions = {
            "logits": logits,
            "probabilities": tf.nn.softmax(two_sided),
            "class_ids": class_ids,
            "classes": tf.gather(self._names(), class_ids),
            "all_class_ids": self._of_each(logits, tf.range(self._n_classes)),
            "all_classes": self._of_each(logits, self._names()),
        }
        return predictions | ({"logistic": tf.sigmoid(logits)} if self._is_binary else {})

    def _export_outputs(self, predictions: Tensors) -> dict[str, Any]:
        classified = ClassificationOutput(predictions["probabilities"], predictions["all_classes"])
        regressed = {"regression": RegressionOutput(predictions["logistic"])} if self._is_binary else {}
        return {"classification": classified, **regressed}

    def _names(self) -> tf.Tensor:
        return tf.constant([str(word) for word in self._vocabulary or range(self._n_classes)])

    @staticmethod
    def _of_each(logits: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        return tf.tile(classes[tf.newaxis], [tf.shape(logits)[0], 1])

    def _checked_labels(self, labels: tf.Tensor) -> tf.Tensor:
        """Class ids; of two classes, as floats. A label that is no class fails the step."""
        if (labels.dtype == tf.string) != (self._vocabulary is not None):
            raise ConfigurationError(
                f"labels of {labels.dtype.name} {'with' if self._vocabulary else 'without'} label_vocabulary",
                hint="give words and their label_vocabulary, or the ids of classes without it",
            )
        ids = self._looked_up(labels) if self._vocabulary is not None else labels
        ids = tf.cast(ids, tf.float32 if self._is_binary else tf.int64)
        is_known = tf.logical_and(ids >= 0, ids <= self._n_classes - 1)
        if not self._is_binary and labels.dtype.is_floating:
            is_known = tf.logical_and(is_known, tf.equal(tf.floor(labels), labels))
        unknown = tf.boolean_mask(labels, tf.logical_not(is_known))
        classes = "in label_vocabulary" if self._vocabulary else f"from 0 to {self._n_classes - 1}"
        checked = tf.debugging.Assert(tf.reduce_all(is_known), [f"labels that are not {classes}:", unknown])
        with tf.control_dependencies([checked]):
            return tf.identity(ids)

    def _looked_up(self, labels: tf.Tensor) -> tf.Tensor:
        ids = tf.range(self._n_classes, dtype=tf.int64)
        words = tf.lookup.KeyValueTensorInitializer(self._names(), ids)
        return tf.lookup.StaticHashTable(words, default_value=-1).lookup(labels)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        if self._is_binary:
            return tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels[:, 0], logits)[:, tf.newaxis]

    def _metrics(self, labels: tf.Tensor, predictions: Tensors, weights: Any) -> dict[str, Any]:
        chosen = predictions["class_ids"]
        accuracy = v1.metrics.accuracy(labels, chosen, weights * tf.ones_like(labels, tf.float32))
        if not self._is_binary:
            return {"accuracy": accuracy}
        probability = predictions["logistic"]
        of_each = weights * tf.ones_like(probability)
        value, update = v1.metrics.mean(labels, of_each)
        return {
            "accuracy": accuracy,
            "accuracy_baseline": (tf.maximum(value, 1 - value), tf.maximum(update, 1 - update)),
            "auc": v1.metrics.auc(labels, probability, of_each),
            "auc_precision_recall": v1.metrics.auc(labels, probability, of_each, curve="PR"),
            "label/mean": (value, update),
            "precision": v1.metrics.precision(labels, chosen, of_each),
            "prediction/mean": v1.metrics.mean(probability, of_each),
            "recall": v1.metrics.recall(labels, chosen, of_each),
        }


class RegressionHead(Head):
    """Predicts `label_dimension` numbers; the loss is the squared error of each."""

    _hint_of_size = ", or another label_dimension"

    def __init__(self, label_dimension: int, weight_column: Any, loss_reduction: str) -> None:
        super().__init__(weight_column, loss_reduction)
        if label_dimension < 1:
            raise ConfigurationError(
                f"label_dimension is {label_dimension}", hint="give label_dimension of at least 1"
            )
        self.logits_size = self.label_size = label_dimension

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        return {"predictions": logits}

    def _export_outputs(self, predictions: Tensors) -> dict[str, Any]:
        return {"regression": RegressionOutput(predictions["predictions"])}

    def _checked_labels(self, labels: tf.Tensor) -> tf.Tensor:
        if labels.dtype == tf.string:
            raise ConfigurationError("labels of string", hint="give numbers as labels")
        return tf.cast(labels, tf.float32)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.math.squared_difference(logits, labels)

    def _metrics(self, labels: tf.Tensor, predictions: Tensors, weights: Any) -> dict[str, Any]:
        of_each = weights * tf.ones_like(labels)
        return {
            "label/mean": v1.metrics.mean(labels, of_each),
            "prediction/mean": v1.metrics.mean(predictions["predictions"], of_each),
        }

"""`tf.estimator.DNNClassifier`: a multi-layer perceptron on feature columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1 import layers
from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.export import ClassificationOutput, PredictOutput
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys
from hotdelta.compat.v1.estimator.warm_start import WarmStartSettings
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1

LEARNING_RATE = 0.05
_OPTIMIZERS: Mapping[str, Callable[[float], Any]] = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}


class DNNClassifier(Estimator):
    """Labels are class ids from 0, or words of `label_vocabulary`."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        warm_start_from: str | Path | WarmStartSettings | None = None,
    ) -> None:
        if n_classes < 2:
            raise ConfigurationError(f"{n_classes} classes", hint="give n_classes of at least 2")
        if label_vocabulary is not None and len(label_vocabulary) != n_classes:
            raise ConfigurationError(
                f"label_vocabulary has {len(label_vocabulary)} words for {n_classes} classes",
                hint="give one word for each class",
            )
        self._hidden_units = tuple(hidden_units)
        self._columns = list(feature_columns)
        self._n_classes = n_classes
        self._weight_column = weight_column
        self._label_vocabulary = label_vocabulary
        self._optimizer = optimizer
        self._activation = activation_fn
        self._dropout = dropout
        self._has_batch_norm = batch_norm
        super().__init__(self._model, model_dir, config, warm_start_from=warm_start_from)

    def _model(self, features: Mapping[str, Any], labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        logits = self._logits(dict(features), mode, config)
        predictions = self._predictions(logits)
        if mode == ModeKeys.PREDICT:
            classified = ClassificationOutput(predictions["probabilities"], self._class_names(logits))
            outputs = {"serving_default": PredictOutput(predictions), "classification": classified}
            return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
        labels = self._label_ids(labels)
        losses, weights = self._losses(logits, labels), self._weights(features)
        loss = v1.losses.compute_weighted_loss(losses, 1.0 if weights is None else weights)
        if mode == ModeKeys.EVAL:
            metrics = {
                "accuracy": v1.metrics.accuracy(labels, predictions["class_ids"][:, 0], weights),
                "average_loss": v1.metrics.mean(losses, weights),
            }
            if self._n_classes == 2:
                metrics["auc"] = v1.metrics.auc(labels, predictions["probabilities"][:, 1], weights)
            return EstimatorSpec(mode, predictions=predictions, loss=loss, eval_metric_ops=metrics)
        return EstimatorSpec(mode, predictions=predictions, loss=loss, train_op=self._train_op(loss))

    def _logits(self, features: dict[str, Any], mode: str, config: RunConfig) -> tf.Tensor:
        is_training = mode == ModeKeys.TRAIN
        parts = config.num_ps_replicas
        partitioner = v1.min_max_variable_partitioner(max_partitions=parts) if parts else None
        with v1.variable_scope("dnn", partitioner=partitioner):
            with v1.variable_scope("input_from_feature_columns"):
                net = v1.feature_column.input_layer(features, self._columns)
            for number, units in enumerate(self._hidden_units):
                net = layers.dense(net, units, self._activation, name=f"hiddenlayer_{number}")
                if self._dropout:
                    net = layers.dropout(net, self._dropout, training=is_training)
                if self._has_batch_norm:
                    net = layers.batch_normalization(net, momentum=0.999, training=is_training)
            return layers.dense(net, self._n_classes if self._n_classes > 2 else 1, name="logits")

    def _predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        two_sided = tf.concat([tf.zeros_like(logits), logits], 1) if self._n_classes == 2 else logits
        class_ids = tf.argmax(two_sided, 1)[:, tf.newaxis]
        classes = (
            tf.gather(self._names(), class_ids) if self._label_vocabulary else tf.strings.as_string(class_ids)
        )
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(two_sided),
            "class_ids": class_ids,
            "classes": classes,
        }

    def _names(self) -> tf.Tensor:
        return tf.constant([str(word) for word in self._label_vocabulary or range(self._n_classes)])

    def _class_names(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.tile(self._names()[tf.newaxis], [tf.shape(logits)[0], 1])

    def _label_ids(self, labels: tf.Tensor) -> tf.Tensor:
        """Of one dimension. A label that is no class fails the step."""
        labels = tf.reshape(labels, [-1])
        ids = self._looked_up(labels) if self._label_vocabulary else tf.cast(labels, tf.int64)
        is_known = tf.logical_and(ids >= 0, ids < self._n_classes)
        unknown = tf.boolean_mask(labels, tf.logical_not(is_known))
        classes = "in label_vocabulary" if self._label_vocabulary else f"from 0 to {self._n_classes - 1}"
        checked = tf.debugging.Assert(tf.reduce_all(is_known), [f"labels that are not {classes}:", unknown])
        with tf.control_dependencies([checked]):
            return tf.identity(ids)

    def _looked_up(self, labels: tf.Tensor) -> tf.Tensor:
        ids = tf.range(self._n_classes, dtype=tf.int64)
        words = tf.lookup.KeyValueTensorInitializer(self._names(), ids)
        return tf.lookup.StaticHashTable(words, default_value=-1).lookup(labels)

    def _losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One for each example."""
        if self._n_classes == 2:
            return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, logits.dtype), logits[:, 0])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    def _weights(self, features: Mapping[str, Any]) -> tf.Tensor | None:
        """One for each example, or None: all weigh the same."""
        column = self._weight_column
        if column is None:
            return None
        if isinstance(column, str):
            column = tf.feature_column.numeric_column(column)
        weights = v1.feature_column.input_layer(dict(features), [column])
        if weights.shape[1] != 1:
            raise ConfigurationError(
                f"weight_column has {weights.shape[1]} numbers for each example",
                hint="give a numeric column of one",
            )
        return weights[:, 0]

    def _train_op(self, loss: tf.Tensor) -> tf.Operation:
        chosen = self._optimizer
        if isinstance(chosen, str):
            if chosen not in _OPTIMIZERS:
                raise ConfigurationError(
                    f"optimizer {chosen!r} is unknown", hint=f"use one of {', '.join(_OPTIMIZERS)}"
                )
            chosen = _OPTIMIZERS[chosen](LEARNING_RATE)
        elif callable(chosen) and not isinstance(chosen, v1.train.Optimizer):
            chosen = chosen()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            return chosen.minimize(loss, global_step=v1.train.get_global_step())

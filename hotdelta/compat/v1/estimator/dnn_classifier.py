"""`tf.estimator.DNNClassifier`: a multi-layer perceptron on feature columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1 import layers
from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.export import ClassificationOutput, PredictOutput
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys
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
        weight_column: str | None = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
    ) -> None:
        if n_classes < 2:
            raise ConfigurationError(f"{n_classes} classes", hint="give n_classes of at least 2")
        self._hidden_units = tuple(hidden_units)
        self._columns = list(feature_columns)
        self._n_classes = n_classes
        self._weight_column = weight_column
        self._label_vocabulary = label_vocabulary
        self._optimizer = optimizer
        self._activation = activation_fn
        self._dropout = dropout
        self._has_batch_norm = batch_norm
        super().__init__(self._model, model_dir, config)

    def _model(self, features: Mapping[str, Any], labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        logits = self._logits(dict(features), mode, config)
        predictions = self._predictions(logits)
        if mode == ModeKeys.PREDICT:
            classified = ClassificationOutput(predictions["probabilities"], self._class_names(logits))
            outputs = {"serving_default": PredictOutput(predictions), "classification": classified}
            return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
        labels = self._label_ids(labels)
        weights = features[self._weight_column] if self._weight_column else 1.0
        loss = self._loss(logits, labels, weights)
        if mode == ModeKeys.EVAL:
            metrics = {
                "accuracy": v1.metrics.accuracy(labels, predictions["class_ids"][:, 0]),
                "average_loss": v1.metrics.mean(loss),
            }
            if self._n_classes == 2:
                metrics["auc"] = v1.metrics.auc(labels, predictions["probabilities"][:, 1])
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
        if self._label_vocabulary:
            table = v1.lookup.index_table_from_tensor(list(self._label_vocabulary))
            labels = table.lookup(labels)
        return tf.cast(tf.reshape(labels, [-1]), tf.int64)

    def _loss(self, logits: tf.Tensor, labels: tf.Tensor, weights: Any) -> tf.Tensor:
        weights = tf.reshape(weights, [-1]) if isinstance(weights, tf.Tensor) else weights
        if self._n_classes == 2:
            return v1.losses.sigmoid_cross_entropy(
                tf.cast(labels, logits.dtype)[:, tf.newaxis], logits, weights
            )
        return v1.losses.sparse_softmax_cross_entropy(labels, logits, weights)

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

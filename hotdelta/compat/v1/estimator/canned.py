"""The ready-made estimators: deep, linear, both, and the baseline that looks at no feature.

Arguments, defaults and names of variables are those of TensorFlow 1.15: its scripts run, and its weights are a start.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from hotdelta.compat.v1 import layers
from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.heads import SUM, ClassificationHead, Head, RegressionHead
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys
from hotdelta.compat.v1.estimator.warm_start import WarmStartSettings
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1

WarmStart = str | Path | WarmStartSettings | None

_OPTIMIZERS: Mapping[str, Callable[[float], Any]] = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}
_DEEP_RATE, _LINEAR_RATE = 0.05, 0.2
# Of the two parts of one model.
_COMBINED_DEEP_RATE, _COMBINED_LINEAR_RATE = 0.001, 0.005
# A table of less than that is not worth another parameter server.
_TABLE_SLICE_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """What computes logits, under variables of its own `scope`, and is trained by an optimizer of its own."""

    optimizer: Any
    learning_rate: float

    scope: ClassVar[str]

    @abstractmethod
    def logits(self, features: dict[str, Any], units: int, mode: str, config: RunConfig) -> tf.Tensor: ...

    def make_optimizer(self) -> Any:
        """Raises ConfigurationError for what is none of tf.train."""
        chosen = self.optimizer
        if isinstance(chosen, str):
            if chosen not in _OPTIMIZERS:
                raise ConfigurationError(
                    f"optimizer {chosen!r} is unknown", hint=f"use one of {', '.join(_OPTIMIZERS)}"
                )
            return _OPTIMIZERS[chosen](self.learning_rate)
        if callable(chosen):
            chosen = chosen()
        if not isinstance(chosen, v1.train.Optimizer):
            raise ConfigurationError(
                f"optimizer is a {type(chosen).__name__} of {type(chosen).__module__}",
                hint="give one of tf.train, like tf.train.AdagradOptimizer(0.05), or a function that makes it",
            )
        return chosen

    def variables(self) -> list[Any]:
        found: list[Any] = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=f"{self.scope}/")
        return found


@dataclass(frozen=True, kw_only=True)
class DeepPart(Part):
    """A multi-layer perceptron."""

    columns: Sequence[Any]
    hidden_units: Sequence[int]
    activation: Any
    dropout: float | None
    has_batch_norm: bool
    partitioner: Any

    scope: ClassVar[str] = "dnn"

    def logits(self, features: dict[str, Any], units: int, mode: str, config: RunConfig) -> tf.Tensor:
        is_training = mode == ModeKeys.TRAIN
        with v1.variable_scope(self.scope, partitioner=_partitioner(config)):
            tables = self.partitioner or _partitioner(config, min_slice_size=_TABLE_SLICE_BYTES)
            with v1.variable_scope("input_from_feature_columns", partitioner=tables):
                net = v1.feature_column.input_layer(features, list(self.columns))
            for number, size in enumerate(self.hidden_units):
                name = f"hiddenlayer_{number}"
                net = layers.dense(net, size, self.activation, name=name)
                if self.dropout:
                    net = layers.dropout(net, self.dropout, training=is_training)
                if self.has_batch_norm:
                    name = f"{name}/batchnorm_{number}"
                    net = layers.batch_normalization(net, momentum=0.999, training=is_training, name=name)
            return layers.dense(net, units, name="logits")


@dataclass(frozen=True, kw_only=True)
class LinearPart(Part):
    """A weight for each value of a categorical column, and for each number of the others."""

    columns: Sequence[Any]
    sparse_combiner: str
    partitioner: Any

    scope: ClassVar[str] = "linear"

    def logits(self, features: dict[str, Any], units: int, mode: str, config: RunConfig) -> tf.Tensor:  # noqa: ARG002 - the same in each mode
        tables = self.partitioner or _partitioner(config, min_slice_size=_TABLE_SLICE_BYTES)
        columns = list(self.columns)
        with v1.variable_scope(self.scope, partitioner=tables), warnings.catch_warnings():
            # TensorFlow's own function uses a method that TensorFlow advises against.
            warnings.filterwarnings("ignore", message="`layer.add_variable` is deprecated")
            return v1.feature_column.linear_model(features, columns, units, self.sparse_combiner)

    def make_optimizer(self) -> Any:
        """None is Ftrl with a learning rate for that many columns."""
        if self.optimizer is None:
            return v1.train.FtrlOptimizer(min(self.learning_rate, 1 / math.sqrt(len(self.columns))))
        return super().make_optimizer()


@dataclass(frozen=True, kw_only=True)
class BaselinePart(Part):
    """The same logits for each example, however many there are."""

    weight_column: Any
    learning_rate: float = 0.3

    scope: ClassVar[str] = "baseline"

    def logits(self, features: dict[str, Any], units: int, mode: str, config: RunConfig) -> tf.Tensor:  # noqa: ARG002 - the same in each mode
        weight_key = getattr(self.weight_column, "key", self.weight_column)
        counted = [feature for key, feature in features.items() if key != weight_key]
        if not counted:
            raise ConfigurationError(
                "there is no feature that says how many examples there are",
                hint="give at least one feature beside weight_column",
            )
        with v1.variable_scope(self.scope):
            bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        return bias * tf.ones([v1.shape(counted[0])[0], units])


class CannedEstimator(Estimator):
    """The sum of what its parts compute, judged by its head."""

    def __init__(
        self,
        head: Head,
        parts: Sequence[Part],
        model_dir: Any,
        config: RunConfig | None,
        warm_start_from: WarmStart = None,
    ) -> None:
        self._head = head
        self._parts = tuple(parts)
        super().__init__(self._model, model_dir, config, warm_start_from=warm_start_from)

    def _model(self, features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        if not isinstance(features, Mapping):
            raise ConfigurationError(
                f"the features are a {type(features).__name__}", hint="give a dictionary of features by name"
            )
        logits = [part.logits(dict(features), self._head.logits_size, mode, config) for part in self._parts]
        return self._head.spec(features, labels, mode, sum(logits[1:], logits[0]), self._train_op)

    def _train_op(self, loss: tf.Tensor) -> tf.Operation:
        step = v1.train.get_global_step()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            if len(self._parts) == 1:
                return self._parts[0].make_optimizer().minimize(loss, global_step=step)
            trained = [
                part.make_optimizer().minimize(loss, var_list=part.variables()) for part in self._parts
            ]
        with tf.control_dependencies(trained):
            return v1.assign_add(step, 1).op


def _partitioner(config: RunConfig, **options: Any) -> Any:
    parts = config.num_ps_replicas
    return v1.min_max_variable_partitioner(max_partitions=parts, **options) if parts else None


class DNNClassifier(CannedEstimator):
    """Labels are class ids from 0, or words of `label_vocabulary`."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
    ) -> None:
        head = ClassificationHead(n_classes, weight_column, label_vocabulary, loss_reduction)
        part = DeepPart(
            columns=feature_columns,
            hidden_units=hidden_units,
            activation=activation_fn,
            dropout=dropout,
            has_batch_norm=batch_norm,
            partitioner=input_layer_partitioner,
            optimizer=optimizer,
            learning_rate=_DEEP_RATE,
        )
        super().__init__(head, [part], model_dir, config, warm_start_from)


class DNNRegressor(CannedEstimator):
    """Labels are `label_dimension` numbers for each example."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        part = DeepPart(
            columns=feature_columns,
            hidden_units=hidden_units,
            activation=activation_fn,
            dropout=dropout,
            has_batch_norm=batch_norm,
            partitioner=input_layer_partitioner,
            optimizer=optimizer,
            learning_rate=_DEEP_RATE,
        )
        super().__init__(head, [part], model_dir, config, warm_start_from)


class LinearClassifier(CannedEstimator):
    """Labels as for DNNClassifier."""

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = ClassificationHead(n_classes, weight_column, label_vocabulary, loss_reduction)
        part = LinearPart(
            columns=feature_columns,
            sparse_combiner=sparse_combiner,
            partitioner=partitioner,
            optimizer=optimizer,
            learning_rate=_LINEAR_RATE,
        )
        super().__init__(head, [part], model_dir, config, warm_start_from)


class LinearRegressor(CannedEstimator):
    """Labels as for DNNRegressor."""

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        part = LinearPart(
            columns=feature_columns,
            sparse_combiner=sparse_combiner,
            partitioner=partitioner,
            optimizer=optimizer,
            learning_rate=_LINEAR_RATE,
        )
        super().__init__(head, [part], model_dir, config, warm_start_from)


class DNNLinearCombinedClassifier(CannedEstimator):
    """Wide and deep; either part may be left out. Labels as for DNNClassifier."""

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = ClassificationHead(n_classes, weight_column, label_vocabulary, loss_reduction)
        deep = DeepPart(
            columns=dnn_feature_columns or (),
            hidden_units=dnn_hidden_units or (),
            activation=dnn_activation_fn,
            dropout=dnn_dropout,
            has_batch_norm=batch_norm,
            partitioner=input_layer_partitioner,
            optimizer=dnn_optimizer,
            learning_rate=_COMBINED_DEEP_RATE,
        )
        linear = LinearPart(
            columns=linear_feature_columns or (),
            sparse_combiner=linear_sparse_combiner,
            partitioner=input_layer_partitioner,
            optimizer=linear_optimizer,
            learning_rate=_COMBINED_LINEAR_RATE,
        )
        super().__init__(head, _combined(deep, linear), model_dir, config, warm_start_from)


class DNNLinearCombinedRegressor(CannedEstimator):
    """Wide and deep; either part may be left out. Labels as for DNNRegressor."""

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        deep = DeepPart(
            columns=dnn_feature_columns or (),
            hidden_units=dnn_hidden_units or (),
            activation=dnn_activation_fn,
            dropout=dnn_dropout,
            has_batch_norm=batch_norm,
            partitioner=input_layer_partitioner,
            optimizer=dnn_optimizer,
            learning_rate=_COMBINED_DEEP_RATE,
        )
        linear = LinearPart(
            columns=linear_feature_columns or (),
            sparse_combiner=linear_sparse_combiner,
            partitioner=input_layer_partitioner,
            optimizer=linear_optimizer,
            learning_rate=_COMBINED_LINEAR_RATE,
        )
        super().__init__(head, _combined(deep, linear), model_dir, config, warm_start_from)


def _combined(deep: DeepPart, linear: LinearPart) -> list[Part]:
    """Those that have columns."""
    if deep.columns and not deep.hidden_units:
        raise ConfigurationError(
            "dnn_feature_columns without dnn_hidden_units", hint="give the sizes of the hidden layers"
        )
    if not deep.columns and not linear.columns:
        raise ConfigurationError(
            "neither linear_feature_columns nor dnn_feature_columns are given",
            hint="give one of them, or both",
        )
    return [part for part in (deep, linear) if part.columns]


class BaselineClassifier(CannedEstimator):
    """Predicts how frequent each class is. Labels as for DNNClassifier."""

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM,
    ) -> None:
        head = ClassificationHead(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head, [BaselinePart(weight_column=weight_column, optimizer=optimizer)], model_dir, config
        )


class BaselineRegressor(CannedEstimator):
    """Predicts the mean of the labels. Labels as for DNNRegressor."""

    def __init__(
        self,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(
            head, [BaselinePart(weight_column=weight_column, optimizer=optimizer)], model_dir, config
        )

"""tf.estimator, which TensorFlow no longer has: a compact one on tf.train.MonitoredTrainingSession."""

from typing import Any

from hotdelta.compat.v1.estimator import export
from hotdelta.compat.v1.estimator.dnn_classifier import DNNClassifier
from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys
from hotdelta.compat.v1.estimator.task_roles import train_and_evaluate
from hotdelta.compat.v1.estimator.train_specs import EvalSpec, TrainSpec
from hotdelta.compat.v1.estimator.warm_start import WarmStartSettings

__all__ = [
    "BestExporter",
    "DNNClassifier",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "export",
    "train_and_evaluate",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"tf.estimator.{name} is not here, nor in TensorFlow any more: write a model function for "
        f"tf.estimator.Estimator, or use DNNClassifier; there are {', '.join(__all__)}"
    )

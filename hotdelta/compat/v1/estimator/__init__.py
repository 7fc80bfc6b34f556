"""tf.estimator, which TensorFlow no longer has: a compact one on tf.train.MonitoredTrainingSession."""

from typing import Any

from hotdelta.compat.v1 import train as _train
from hotdelta.compat.v1.estimator import experimental, export
from hotdelta.compat.v1.estimator.canned import (
    BaselineClassifier,
    BaselineRegressor,
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
)
from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys
from hotdelta.compat.v1.estimator.task_roles import train_and_evaluate
from hotdelta.compat.v1.estimator.train_specs import EvalSpec, TrainSpec
from hotdelta.compat.v1.estimator.warm_start import WarmStartSettings

__all__ = [
    "BaselineClassifier",
    "BaselineRegressor",
    "BestExporter",
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "LinearClassifier",
    "LinearRegressor",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "experimental",
    "export",
    "train_and_evaluate",
]

# What tf.estimator has from tf.train.
_OF_TRAIN = (
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "VocabInfo",
)
_INSTEAD = {
    "BoostedTrees": "trees are no variables that a delta could carry; train them with a library for trees",
    "inputs": "make a tf.data.Dataset in the input function, as by tf.data.Dataset.from_tensor_slices",
    "tpu": "only CPUs are trained on here",
}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _OF_TRAIN:
        return getattr(_train, name)
    instead = next((text for start, text in _INSTEAD.items() if name.startswith(start)), None)
    if instead is None and hasattr(_train, name):
        instead = f"use tf.train.{name}"
    elif instead is None:
        instead = f"write a model function for tf.estimator.Estimator, or use one of {', '.join(__all__)}"
    raise AttributeError(f"tf.estimator.{name} is not here: {instead}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_OF_TRAIN})

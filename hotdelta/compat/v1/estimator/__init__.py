"""tf.estimator, which TensorFlow no longer has: a compact one on tf.train.MonitoredTrainingSession."""

from typing import Any

from hotdelta.compat.v1.estimator import export
from hotdelta.compat.v1.estimator.dnn_classifier import DNNClassifier
from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys
from hotdelta.compat.v1.estimator.warm_start import WarmStartSettings

__all__ = [
    "DNNClassifier",
    "Estimator",
    "EstimatorSpec",
    "ModeKeys",
    "RunConfig",
    "WarmStartSettings",
    "export",
]

_IN_PLACE_OF = dict.fromkeys(
    ("train_and_evaluate", "TrainSpec", "EvalSpec"),
    "call estimator.train(input_fn, max_steps=...) and estimator.evaluate(input_fn) in turn",
)
_MODEL_FUNCTION = "write a model function for tf.estimator.Estimator, or use DNNClassifier"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    remedy = _IN_PLACE_OF.get(name, _MODEL_FUNCTION)
    raise AttributeError(
        f"tf.estimator.{name} is not here, nor in TensorFlow any more: {remedy}; there are {', '.join(__all__)}"
    )

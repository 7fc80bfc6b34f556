"""tf.estimator, which TensorFlow no longer has: a compact one on tf.train.MonitoredTrainingSession."""

from hotdelta.compat.v1.estimator import export
from hotdelta.compat.v1.estimator.dnn_classifier import DNNClassifier
from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys

__all__ = ["DNNClassifier", "Estimator", "EstimatorSpec", "ModeKeys", "RunConfig", "export"]

"""TensorFlow 1 with incremental checkpoints: `import hotdelta.compat.v1 as tf`.

Everything of tf.compat.v1, in graph mode; `train`, `estimator`, `saved_model`, `layers`, `nn`, `feature_column`,
ConfigProto and the Server of `distribute` are ours, also for a script that calls them by `tf.compat.v1`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as _tensorflow

_tensorflow.compat.v1.disable_v2_behavior()

from hotdelta.compat.v1 import (  # noqa: E402
    compat,
    distribute,
    estimator,
    feature_column,
    keras,
    layers,
    nn,
    saved_model,
    train,
)
from hotdelta.compat.v1.deeprec import work_queue as _work_queue  # noqa: E402
from hotdelta.compat.v1.deeprec.stages import SmartStageOptions, make_prefetch_hook, staged  # noqa: E402
from hotdelta.compat.v1.embedding.making import get_embedding_variable  # noqa: E402
from hotdelta.compat.v1.embedding.options import (  # noqa: E402
    CBFFilter,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    InitializerOption,
    L2WeightEvict,
    StorageOption,
)
from hotdelta.compat.v1.embedding.variable import EmbeddingVariable  # noqa: E402
from hotdelta.compat.v1.graph.session_config import ConfigProto, ExecutorPolicy  # noqa: E402
from hotdelta.compat.v1.scatter import (  # noqa: E402
    scatter_add,
    scatter_div,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_nd_add,
    scatter_nd_sub,
    scatter_nd_update,
    scatter_sub,
    scatter_update,
)
from hotdelta.compat.v1.sessions import incremental_saver  # noqa: E402
from hotdelta.compat.v1.sessions.plain_session import InteractiveSession, Session  # noqa: E402
from hotdelta.tensorflow_internals import add_module as _add_module  # noqa: E402

__all__ = [
    "CBFFilter",
    "ConfigProto",
    "CounterFilter",
    "EmbeddingVariable",
    "EmbeddingVariableOption",
    "ExecutorPolicy",
    "GlobalStepEvict",
    "InitializerOption",
    "InteractiveSession",
    "L2WeightEvict",
    "Session",
    "SmartStageOptions",
    "StorageOption",
    "compat",
    "distribute",
    "estimator",
    "feature_column",
    "get_embedding_variable",
    "incremental_saver",
    "keras",
    "layers",
    "make_prefetch_hook",
    "nn",
    "saved_model",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
    "staged",
    "train",
]

# Scripts of DeepRec import them from there.
_add_module("ops.work_queue", _work_queue)
_add_module("training.incremental_saver", incremental_saver)


def __getattr__(name: str) -> Any:
    return getattr(_tensorflow.compat.v1, name)


def __dir__() -> list[str]:
    return sorted({*dir(_tensorflow.compat.v1), *__all__})

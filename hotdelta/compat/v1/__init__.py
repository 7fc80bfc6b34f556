"""TensorFlow 1 with incremental checkpoints: `import hotdelta.compat.v1 as tf`.

Everything of tf.compat.v1, in graph mode; `train`, `estimator`, `saved_model`, `layers` and the Server of `distribute`
are ours, also for a script that calls them by `tf.compat.v1`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as _tensorflow

_tensorflow.compat.v1.disable_v2_behavior()

from hotdelta.compat.v1 import compat, distribute, estimator, keras, layers, saved_model, train  # noqa: E402
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
from hotdelta.compat.v1.sessions.plain_session import InteractiveSession, Session  # noqa: E402

__all__ = [
    "InteractiveSession",
    "Session",
    "compat",
    "distribute",
    "estimator",
    "keras",
    "layers",
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
    "train",
]


def __getattr__(name: str) -> Any:
    return getattr(_tensorflow.compat.v1, name)


def __dir__() -> list[str]:
    return sorted({*dir(_tensorflow.compat.v1), *__all__})

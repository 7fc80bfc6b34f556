"""tf.distribute, with the Server of tf.train."""

from __future__ import annotations

from typing import Any

import tensorflow as _tensorflow

from hotdelta.compat.v1.graph.cluster_tasks import Server

__all__ = ["Server"]


def __getattr__(name: str) -> Any:
    return getattr(_tensorflow.compat.v1.distribute, name)


def __dir__() -> list[str]:
    return sorted({*dir(_tensorflow.compat.v1.distribute), *__all__})

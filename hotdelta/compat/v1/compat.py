"""tf.compat, for scripts that say `tf.compat.v1.train.Saver`: its `v1` is this package."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as _tensorflow


def __getattr__(name: str) -> Any:
    return sys.modules[__package__] if name == "v1" else getattr(_tensorflow.compat.v1.compat, name)


def __dir__() -> list[str]:
    return dir(_tensorflow.compat.v1.compat)

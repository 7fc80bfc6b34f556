"""tf.nn, whose look-ups know embedding variables."""

from __future__ import annotations

from typing import Any

import tensorflow as _tensorflow

from hotdelta.compat.v1.embedding.lookups import (
    embedding_lookup,
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)

__all__ = ["embedding_lookup", "embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def __getattr__(name: str) -> Any:
    return getattr(_tensorflow.compat.v1.nn, name)


def __dir__() -> list[str]:
    return sorted({*dir(_tensorflow.compat.v1.nn), *__all__})
